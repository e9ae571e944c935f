package streamid

import (
	"cmp"
	"math"
	"strconv"
	"strings"
)

// Position is a place in the log of one partition: behind the entry of this stream id. The zero value is the beginning.
type Position struct {
	MS, Seq uint64
	// IDHash tells the entry from one to which a failover has given the same id: see ProofOf. 0 does not say.
	IDHash uint16
}

// HashID is 16 bits of a hash of a notification's id (FNV-1a), and never 0.
func HashID(id string) uint16 {
	h := uint32(2166136261)
	for i := range len(id) {
		h = (h ^ uint32(id[i])) * 16777619
	}
	return max(1, uint16(h^h>>16))
}

// ParseEntry reads the stream id of an entry, and takes its proof from the id of the notification in it.
func ParseEntry(id, notification string) (Position, bool) {
	p, ok := ParsePosition(id)
	p.IDHash = HashID(notification)
	return p, ok
}

// ParsePosition reads a stream id, such as "1732153000123-4".
func ParsePosition(id string) (Position, bool) {
	ms, seq, found := strings.Cut(id, "-")
	if !found {
		return Position{}, false
	}
	m, err1 := strconv.ParseUint(ms, 10, 64)
	s, err2 := strconv.ParseUint(seq, 10, 64)
	return Position{MS: m, Seq: s}, err1 == nil && err2 == nil
}

// String is the stream id.
func (p Position) String() string {
	b := make([]byte, 0, 32)
	b = strconv.AppendUint(b, p.MS, 10)
	b = append(b, '-')
	return string(strconv.AppendUint(b, p.Seq, 10))
}

// Compare orders positions as cmp.Compare does, by their stream ids.
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.MS, q.MS), cmp.Compare(p.Seq, q.Seq))
}

// Matches tells whether p, which somebody has brought, is at q: p may have no proof, but no other one.
func (p Position) Matches(q Position) bool {
	return p == q || p.IDHash == 0 && p.Compare(q) == 0
}

// Predecessor is the last position before p: nothing can be between the two. It has no proof.
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
