package streamid

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
)

// The first byte of a cursor: the version of the format, and the kind of content.
const (
	formatOne = 0x20 // the position of one partition
	formatAll = 0x21 // the positions of all
	// Older cursors, whose positions have no hash, are also accepted.
	formatOneNoHash = 0x10
	formatAllNoHash = 0x11
)

// Now is accepted in place of a cursor. The stream then begins with a cursor for the current end of the log. No real
// cursor is as short.
const Now = "now"

// maxPartitions is the maximum number of partitions in a cursor.
const maxPartitions = 1 << 16

// ErrMalformed is returned for text that is not a cursor.
var ErrMalformed = errors.New("this is no cursor of this relay: use one exactly as a message carried it")

// ErrOtherLog is returned for a cursor of a log with another number of partitions.
var ErrOtherLog = errors.New("the cursor is of a log with another number of partitions")

// Cursor is a decoded cursor. It is immutable.
type Cursor struct {
	first int // the partition of the first position
	list  []Position
}

// Append appends the text of a cursor to text. list contains the position of partition first, or the positions of all
// partitions. The text is safe in URLs and headers.
func Append(text []byte, partitions, first int, list []Position) []byte {
	var space [128]byte
	b := space[:0]
	if len(list) == partitions {
		b = append(b, formatAll)
		b = binary.AppendUvarint(b, uint64(partitions))
	} else {
		b = append(b, formatOne)
		b = binary.AppendUvarint(b, uint64(partitions))
		b = binary.AppendUvarint(b, uint64(first))
	}
	// Each time is stored as its distance to the newest one. The beginning is a single zero.
	var base uint64
	for _, p := range list {
		base = max(base, p.MS)
	}
	b = binary.AppendUvarint(b, base)
	for _, p := range list {
		if p == (Position{}) {
			b = append(b, 0)
			continue
		}
		b = binary.AppendUvarint(b, base-p.MS+1)
		b = binary.AppendUvarint(b, p.Seq)
		b = binary.BigEndian.AppendUint16(b, p.IDHash)
	}
	b = binary.BigEndian.AppendUint16(b, checksum(b))
	return base64.RawURLEncoding.AppendEncode(text, b)
}

// checksum detects truncated and damaged cursors.
func checksum(b []byte) uint16 { return uint16(crc32.ChecksumIEEE(b)) }

// Parse decodes a cursor for a log with this number of partitions. The error is [ErrMalformed] or [ErrOtherLog].
func Parse(text string, partitions int) (Cursor, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) < 3 {
		return Cursor{}, ErrMalformed
	}
	end := len(b) - 2
	if binary.BigEndian.Uint16(b[end:]) != checksum(b[:end]) {
		return Cursor{}, ErrMalformed
	}
	r := reader{b: b[1:end], hasHashes: b[0] == formatOne || b[0] == formatAll}
	count, known := r.readNumber(), true
	c, n := Cursor{}, count
	switch b[0] {
	case formatOne, formatOneNoHash:
		c.first, n = int(min(r.readNumber(), maxPartitions)), 1
	case formatAll, formatAllNoHash:
	default:
		known = false
	}
	if !known || r.bad || count == 0 || count > maxPartitions || c.first >= int(count) {
		return Cursor{}, ErrMalformed
	}
	base := r.readNumber()
	for ; n > 0 && !r.bad; n-- {
		c.list = append(c.list, r.readPosition(base))
	}
	switch {
	case r.bad || len(r.b) > 0:
		return Cursor{}, ErrMalformed
	case int(count) != partitions:
		return Cursor{}, ErrOtherLog
	}
	return c, nil
}

// At returns the position of a partition, or false if the cursor has none.
func (c Cursor) At(partition int) (Position, bool) {
	if partition < c.first || partition-c.first >= len(c.list) {
		return Position{}, false
	}
	return c.list[partition-c.first], true
}

// reader decodes numbers until one is invalid.
type reader struct {
	b         []byte
	hasHashes bool
	bad       bool
}

func (r *reader) readNumber() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.b, r.bad = nil, true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) readPosition(base uint64) Position {
	age := r.readNumber()
	if age == 0 {
		return Position{}
	}
	if age-1 > base {
		r.bad = true
		return Position{}
	}
	p := Position{MS: base - (age - 1), Seq: r.readNumber()}
	r.bad = r.bad || p.MS == math.MaxUint64 // Redis never uses it
	if !r.hasHashes || r.bad {
		return p
	}
	if r.bad = len(r.b) < 2; !r.bad {
		p.IDHash, r.b = binary.BigEndian.Uint16(r.b), r.b[2:]
	}
	return p
}
