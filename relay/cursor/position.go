package cursor

import (
	"cmp"
	"math"
	"strconv"
	"strings"
)

// Position is a place in the log of one partition: behind the entry of this stream id. The zero value is the beginning.
type Position struct{ MS, Seq uint64 }

// ParsePosition reads a stream id, such as "1732153000123-4".
func ParsePosition(id string) (Position, bool) {
	ms, seq, found := strings.Cut(id, "-")
	if !found {
		return Position{}, false
	}
	m, err1 := strconv.ParseUint(ms, 10, 64)
	s, err2 := strconv.ParseUint(seq, 10, 64)
	return Position{m, s}, err1 == nil && err2 == nil
}

// String is the stream id.
func (p Position) String() string {
	b := make([]byte, 0, 32)
	b = strconv.AppendUint(b, p.MS, 10)
	b = append(b, '-')
	return string(strconv.AppendUint(b, p.Seq, 10))
}

// Compare orders positions as cmp.Compare does.
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.MS, q.MS), cmp.Compare(p.Seq, q.Seq))
}

// Before is the last position before p: nothing can be between the two.
func (p Position) Before() Position {
	switch {
	case p.Seq > 0:
		return Position{p.MS, p.Seq - 1}
	case p.MS > 0:
		return Position{p.MS - 1, math.MaxUint64}
	default:
		return p
	}
}
