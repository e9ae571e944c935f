package storage

import (
	"fmt"
	"math"
	"testing"
)

func TestFairShare(t *testing.T) {
	t.Parallel()
	const minBytes, maxBytes = 4 << 10, 1 << 20
	s := NewFairShare(minBytes)
	fill := func(name string, step int64) int64 {
		for s.Bytes(name)+step <= s.Limit(name, step, maxBytes) {
			s.Add(name, step)
		}
		return s.Bytes(name)
	}
	if got := s.Limit("a", 1, 0); got != math.MaxInt64 {
		t.Errorf("without a maximum: got the limit %d", got)
	}
	if got := fill("a", 1024); got != maxBytes/2 {
		t.Errorf("a single name has %d bytes, want half of %d", got, maxBytes)
	}
	if got := fill("b", 1024); got != maxBytes/2 {
		t.Errorf("a second name has %d bytes, want half of %d", got, maxBytes)
	}
	if got := fill("c", 1024); got < maxBytes/6-1024 || got > maxBytes/6 {
		t.Errorf("a third name has %d bytes, want a third of half of %d", got, maxBytes)
	}
	total := int64(0)
	for i := range 200 {
		total += fill(fmt.Sprint(i), 256)
	}
	if most := int64(4*maxBytes + 200*minBytes); s.total > most {
		t.Errorf("203 names have %d bytes, want at most %d", s.total, most)
	}
	// Many names with little leave others their minimum, and count as nothing in the parts of others.
	few := NewFairShare(minBytes)
	for i := range 10_000 {
		few.Add(fmt.Sprint(i), 200)
	}
	if got := few.Limit("x", 200, maxBytes); got != maxBytes/2 {
		t.Errorf("after many names with little: got the limit %d, want %d", got, maxBytes/2)
	}
	for name := range s.byName {
		s.Add(name, -s.Bytes(name))
	}
	if s.total != 0 || s.large != 0 || len(s.byName) != 0 {
		t.Errorf("after all was removed: got %+v", s)
	}
}
