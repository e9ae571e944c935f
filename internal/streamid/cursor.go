// Package streamid compares the IDs of Redis streams, and encodes positions in the log as cursors, the opaque text that
// clients resume from.
//
// A cursor contains the position of one partition, for the stream of a hub, or of all partitions, for the stream of
// an account. The cursor determines where the stream starts. The API key determines what the client may see.
package streamid

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash"
	"hash/crc32"
	"math"
	"sync"
)

// A cursor is the version, the synthetic IV, the encrypted content, and a checksum.
const (
	cursorVersion = 0x30
	ivLen         = 12
	checksumLen   = 2
	nonceLen      = 8
)

// The first byte of the content.
const (
	contentOne = iota // the position of one partition
	contentAll        // the positions of all partitions

	hasNonce = 0x80 // a flag: nonceLen random bytes follow the positions
)

// Now is accepted in place of a cursor. The stream then begins with a cursor for the current end of the log. Every real
// cursor is longer.
const Now = "now"

// maxPartitions is the maximum number of partitions in a cursor.
const maxPartitions = 1 << 16

// ErrMalformed is returned for text that is not a cursor.
var ErrMalformed = errors.New("this is neither a cursor of this relay nor a time: use a cursor exactly as it was received in a message, or a time " +
	"such as 2026-11-26T08:00:00Z")

// ErrOtherLog is returned for a cursor of another log, or of a log with another number of partitions.
var ErrOtherLog = errors.New("the cursor belongs to another log")

// Cursor is a decoded cursor. It is immutable.
type Cursor struct {
	first int // the partition of the first position
	list  []Position
}

// CursorKey is the secret with which a relay encrypts cursors.
type CursorKey [32]byte

// Cursors encodes and decodes cursors. A cursor reveals only its length. An unencrypted position would also show when
// other accounts published. Cursors may be used concurrently.
type Cursors struct {
	block   cipher.Block
	scratch sync.Pool // of *cursorScratch
}

// cursorScratch is reused to avoid allocations for each cursor.
type cursorScratch struct {
	buf             []byte
	mac             hash.Hash
	sum             [sha256.Size]byte
	counter, stream [aes.BlockSize]byte
}

// NewCursors returns the cursors of a relay.
func NewCursors(key CursorKey) *Cursors {
	derive := func(use string) []byte {
		mac := hmac.New(sha256.New, key[:])
		mac.Write([]byte(use))
		return mac.Sum(nil)
	}
	block, _ := aes.NewCipher(derive("hubrelay cursor encryption")) // fails only for a key of another length
	macKey := derive("hubrelay cursor authentication")
	return &Cursors{block: block, scratch: sync.Pool{
		New: func() any { return &cursorScratch{mac: hmac.New(sha256.New, macKey)} },
	}}
}

// Append appends the text of a cursor to text. list contains the position of partition first, or the positions of all
// partitions. The text is safe in URLs and headers. Equal positions have equal cursors. Use Append only for a client that
// receives the entry at the positions, and AppendUnique otherwise.
func (c *Cursors) Append(text []byte, partitions, first int, list []Position) []byte {
	return c.appendSealed(text, partitions, first, list, nil)
}

// AppendUnique is Append with a cursor that differs on each call. A client cannot compare it with an earlier one to find out
// whether anything was published.
func (c *Cursors) AppendUnique(text []byte, partitions, first int, list []Position) []byte {
	var nonce [nonceLen]byte
	_, _ = rand.Read(nonce[:]) // never returns an error
	return c.appendSealed(text, partitions, first, list, nonce[:])
}

func (c *Cursors) appendSealed(text []byte, partitions, first int, list []Position, nonce []byte) []byte {
	scratch, _ := c.scratch.Get().(*cursorScratch)
	defer c.scratch.Put(scratch)
	b := append(scratch.buf[:0], cursorVersion)
	b = append(b, make([]byte, ivLen)...)
	b = appendContent(b, partitions, first, list)
	if len(nonce) > 0 {
		b[1+ivLen] |= hasNonce
		b = append(b, nonce...)
	}
	c.sealContent(scratch, b[1:])
	b = binary.BigEndian.AppendUint16(b, checksum(b))
	scratch.buf = b
	return base64.RawURLEncoding.AppendEncode(text, b)
}

func appendContent(b []byte, partitions, first int, list []Position) []byte {
	if len(list) == partitions {
		b = append(b, contentAll)
		b = binary.AppendUvarint(b, uint64(partitions))
	} else {
		b = append(b, contentOne)
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
	return b
}

// sealContent encrypts the content after the IV in place. Like RFC 5297, it uses a MAC of the content as the IV, here
// HMAC-SHA256. This requires no state and detects modified cursors.
func (c *Cursors) sealContent(scratch *cursorScratch, b []byte) {
	copy(b, scratch.sumOf(b[ivLen:]))
	c.applyKeyStream(scratch, b[:ivLen], b[ivLen:])
}

// openContent decrypts the content in place. It returns nil if the content was not sealed with this key.
func (c *Cursors) openContent(b []byte) []byte {
	scratch, _ := c.scratch.Get().(*cursorScratch)
	defer c.scratch.Put(scratch)
	c.applyKeyStream(scratch, b[:ivLen], b[ivLen:])
	if !hmac.Equal(scratch.sumOf(b[ivLen:]), b[:ivLen]) {
		return nil
	}
	return b[ivLen:]
}

// sumOf returns the first ivLen bytes of the MAC.
func (s *cursorScratch) sumOf(content []byte) []byte {
	s.mac.Reset()
	s.mac.Write(content)
	return s.mac.Sum(s.sum[:0])[:ivLen]
}

// applyKeyStream encrypts or decrypts in counter mode. crypto/cipher would allocate for each cursor.
func (c *Cursors) applyKeyStream(s *cursorScratch, iv, content []byte) {
	copy(s.counter[:], iv)
	for i := uint32(0); len(content) > 0; i++ {
		binary.BigEndian.PutUint32(s.counter[ivLen:], i)
		c.block.Encrypt(s.stream[:], s.counter[:])
		content = content[subtle.XORBytes(content, content, s.stream[:]):]
	}
}

// checksum distinguishes damaged cursors from cursors of other logs.
func checksum(b []byte) uint16 { return uint16(crc32.ChecksumIEEE(b)) }

// Parse decodes a cursor for a log with this number of partitions. The error is [ErrMalformed] or [ErrOtherLog].
func (c *Cursors) Parse(text string, partitions int) (Cursor, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) < checksumLen+1 {
		return Cursor{}, ErrMalformed
	}
	end := len(b) - checksumLen
	if binary.BigEndian.Uint16(b[end:]) != checksum(b[:end]) {
		return Cursor{}, ErrMalformed
	}
	if b[0] != cursorVersion || end < 1+ivLen {
		return Cursor{}, ErrOtherLog
	}
	content := c.openContent(b[1:end])
	if content == nil {
		return Cursor{}, ErrOtherLog
	}
	return parseContent(content, partitions)
}

func parseContent(b []byte, partitions int) (Cursor, error) {
	if len(b) == 0 {
		return Cursor{}, ErrMalformed
	}
	kind := b[0] &^ hasNonce
	if kind != b[0] {
		if len(b) <= nonceLen {
			return Cursor{}, ErrMalformed
		}
		b = b[:len(b)-nonceLen]
	}
	r := reader{b: b[1:]}
	count, known := r.readNumber(), true
	c, n := Cursor{}, count
	switch kind {
	case contentOne:
		c.first, n = int(min(r.readNumber(), maxPartitions)), 1
	case contentAll:
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

// At returns the position of a partition. It returns false if the cursor has no position for it.
func (c Cursor) At(partition int) (Position, bool) {
	if partition < c.first || partition-c.first >= len(c.list) {
		return Position{}, false
	}
	return c.list[partition-c.first], true
}

// reader decodes numbers until one is invalid.
type reader struct {
	b   []byte
	bad bool
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
	if r.bad = r.bad || len(r.b) < 2; !r.bad {
		p.IDHash, r.b = binary.BigEndian.Uint16(r.b), r.b[2:]
	}
	return p
}
