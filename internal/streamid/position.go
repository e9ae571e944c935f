package streamid

import (
	"cmp"
	"math"
	"strconv"
	"strings"
	"time"
)

// Position is a position in the log of one partition, right after the entry with this stream ID. The zero value is the
// beginning.
type Position struct {
	MS, Seq uint64
	// IDHash is the HashID of the notification in the entry, or 0 if unknown. It detects that a failover has reused the
	// stream ID for another entry.
	IDHash uint16
}

// HashID returns 16 bits of the FNV-1a hash of a notification's ID. It is never 0.
func HashID(id string) uint16 {
	h := uint32(2166136261)
	for i := range len(id) {
		h = (h ^ uint32(id[i])) * 16777619
	}
	return max(1, uint16(h^h>>16))
}

// ParseEntry parses the stream ID of an entry and adds the hash of its notification's ID. It returns false if the
// stream ID is invalid.
func ParseEntry(id, notificationID string) (Position, bool) {
	p, ok := ParsePosition(id)
	p.IDHash = HashID(notificationID)
	return p, ok
}

// ParsePosition parses a stream ID, such as "1732153000123-4". It returns false if the ID is invalid.
func ParsePosition(id string) (Position, bool) {
	ms, seq, found := strings.Cut(id, "-")
	if !found {
		return Position{}, false
	}
	m, err1 := strconv.ParseUint(ms, 10, 64)
	s, err2 := strconv.ParseUint(seq, 10, 64)
	return Position{MS: m, Seq: s}, err1 == nil && err2 == nil
}

// String returns the stream ID.
func (p Position) String() string {
	b := make([]byte, 0, 32)
	b = strconv.AppendUint(b, p.MS, 10)
	b = append(b, '-')
	return string(strconv.AppendUint(b, p.Seq, 10))
}

// maxTime is the end of the year 9999 in unix milliseconds, the last time that JSON can contain.
const maxTime = 253402300799999

// Time returns the time at which Redis added the entry with this stream ID, at most the end of the year 9999.
func (p Position) Time() time.Time { return time.UnixMilli(int64(min(p.MS, maxTime))).UTC() }

// Compare orders positions by their stream IDs as cmp.Compare does.
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.MS, q.MS), cmp.Compare(p.Seq, q.Seq))
}

// Matches reports whether p, the position of a client, is q. p may lack the hash, but must not have another one.
func (p Position) Matches(q Position) bool {
	return p == q || p.IDHash == 0 && p.Compare(q) == 0
}

// Predecessor returns the highest position before p, without a hash. No entry can be between the two.
func (p Position) Predecessor() Position {
	switch {
	case p.Seq > 0:
		return Position{MS: p.MS, Seq: p.Seq - 1}
	case p.MS > 0:
		return Position{MS: p.MS - 1, Seq: math.MaxUint64}
	default:
		return Position{}
	}
}
