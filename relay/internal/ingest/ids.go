package ingest

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"sync/atomic"
	"time"
)

// idSource generates IDs of 24 hexadecimal digits: four bytes of seconds, a counter of three bytes, and five bytes
// that identify the source. The IDs of one source always increase. IDs of several nodes are in order with a
// resolution of one second. It may be used concurrently.
type idSource struct {
	// last contains seconds and counter as one number. If the counter overflows, the next second is used early.
	last  atomic.Uint64
	owner [5]byte
	now   func() time.Time
}

func newIDSource() *idSource {
	s := &idSource{now: time.Now}
	_, _ = rand.Read(s.owner[:]) // Read never returns an error.
	return s
}

func (s *idSource) next() string {
	second := uint64(uint32(s.now().Unix())) << 24
	var next uint64
	for {
		last := s.last.Load()
		next = max(last+1, second)
		if s.last.CompareAndSwap(last, next) {
			break
		}
	}
	var raw [12]byte
	binary.BigEndian.PutUint64(raw[:], next<<8)
	copy(raw[7:], s.owner[:])
	var text [24]byte
	hex.Encode(text[:], raw[:])
	return string(text[:])
}
