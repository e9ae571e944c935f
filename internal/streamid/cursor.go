package streamid

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
)

// What a cursor begins with: the version of the format, and what it holds.
const (
	formatOne = 0x20 // the position of one partition
	formatAll = 0x21 // the positions of all
	// Cursors of before positions had proofs are read, too.
	formatOneNoHash = 0x10
	formatAllNoHash = 0x11
)

// Now is what stands in place of a cursor for whoever has none yet and wants one at once: the stream begins with the
// cursor of that moment. No cursor is as short.
const Now = "now"

// maxCursorBytes bounds the number of partitions that is believed.
const maxCursorBytes = 1 << 16

// ErrMalformed is returned for what is no cursor.
var ErrMalformed = errors.New("this is no cursor of this relay: use one exactly as a message carried it")

// ErrOtherLog is returned for a cursor of a log with another number of partitions: here it points at nothing.
var ErrOtherLog = errors.New("the cursor is of a log with another number of partitions")

// Cursor is what Parse has read. Nobody may change what it returns.
type Cursor struct {
	first int // the partition of the first position
	at    []Position
}

// Append appends the text of a cursor: of partitions in all, those from first on have the positions at, which are one
// or all. It is safe in URLs and headers.
func Append(text []byte, partitions, first int, at []Position) []byte {
	var space [128]byte
	b := space[:0]
	if len(at) == partitions {
		b = append(b, formatAll)
		b = binary.AppendUvarint(b, uint64(partitions))
	} else {
		b = append(b, formatOne)
		b = binary.AppendUvarint(b, uint64(partitions))
		b = binary.AppendUvarint(b, uint64(first))
	}
	// The newest is the base, and the others are told by how much older they are. The beginning is a single zero.
	var base uint64
	for _, p := range at {
		base = max(base, p.MS)
	}
	b = binary.AppendUvarint(b, base)
	for _, p := range at {
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

// checksum finds what was cut off or changed by accident.
func checksum(b []byte) uint16 { return uint16(crc32.ChecksumIEEE(b)) }

// Parse reads a cursor for a log of so many partitions. It returns ErrMalformed or ErrOtherLog.
func Parse(text string, partitions int) (Cursor, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) < 3 {
		return Cursor{}, ErrMalformed
	}
	end := len(b) - 2
	if binary.BigEndian.Uint16(b[end:]) != checksum(b[:end]) {
		return Cursor{}, ErrMalformed
	}
	r := reader{b: b[1:end], proofs: b[0] == formatOne || b[0] == formatAll}
	count, known := r.number(), true
	c, n := Cursor{}, count
	switch b[0] {
	case formatOne, formatOneNoHash:
		c.first, n = int(min(r.number(), maxCursorBytes)), 1
	case formatAll, formatAllNoHash:
	default:
		known = false
	}
	if !known || r.bad || count == 0 || count > maxCursorBytes || c.first >= int(count) {
		return Cursor{}, ErrMalformed
	}
	base := r.number()
	for ; n > 0 && !r.bad; n-- {
		c.at = append(c.at, r.position(base))
	}
	switch {
	case r.bad || len(r.b) > 0:
		return Cursor{}, ErrMalformed
	case int(count) != partitions:
		return Cursor{}, ErrOtherLog
	}
	return c, nil
}

// At returns the position of a partition, and false where the cursor has none.
func (c Cursor) At(partition int) (Position, bool) {
	if partition < c.first || partition-c.first >= len(c.at) {
		return Position{}, false
	}
	return c.at[partition-c.first], true
}

// reader takes numbers off bytes until one is bad.
type reader struct {
	b      []byte
	proofs bool // whether positions have them
	bad    bool
}

func (r *reader) number() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.b, r.bad = nil, true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) position(base uint64) Position {
	age := r.number()
	if age == 0 {
		return Position{}
	}
	if age-1 > base {
		r.bad = true
		return Position{}
	}
	p := Position{MS: base - (age - 1), Seq: r.number()}
	r.bad = r.bad || p.MS == math.MaxUint64 // no entry has it
	if !r.proofs || r.bad {
		return p
	}
	if r.bad = len(r.b) < 2; !r.bad {
		p.IDHash, r.b = binary.BigEndian.Uint16(r.b), r.b[2:]
	}
	return p
}
