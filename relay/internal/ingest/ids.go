package ingest

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"sync/atomic"
	"time"
)

// idSource gives ids of 24 hexadecimal digits: four bytes of seconds, three of a counter, five that are this source's
// own. One source's ids only grow; those of several nodes are in order to the second. It may be used concurrently.
type idSource struct {
	// last is seconds and counter as one number. A second in which the counter runs over borrows from the next.
	last  atomic.Uint64
	owner [5]byte
	now   func() time.Time
}

func newIDSource() *idSource {
	s := &idSource{now: time.Now}
	_, _ = rand.Read(s.owner[:]) // never fails, by its documentation
	return s
}

func (s *idSource) next() string {
	second := uint64(uint32(s.now().Unix())) << 24
	var mine uint64
	for {
		last := s.last.Load()
		mine = max(last+1, second)
		if s.last.CompareAndSwap(last, mine) {
			break
		}
	}
	var raw [12]byte
	binary.BigEndian.PutUint64(raw[:], mine<<8)
	copy(raw[7:], s.owner[:])
	var text [24]byte
	hex.Encode(text[:], raw[:])
	return string(text[:])
}
