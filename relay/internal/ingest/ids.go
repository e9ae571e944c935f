package ingest

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// idSource generates IDs of 24 hexadecimal digits: 32 bits of seconds, 30 bits of nanoseconds, and 34 random bits. The IDs of
// one source always increase. A counter would tell each publisher how much others publish. It may be used concurrently.
type idSource struct {
	last atomic.Uint64 // seconds and nanoseconds
	now  func() time.Time
}

func newIDSource() *idSource { return &idSource{now: time.Now} }

func (s *idSource) next() string {
	now := s.now()
	tick := uint64(uint32(now.Unix()))<<30 | uint64(now.Nanosecond())
	for {
		last := s.last.Load()
		tick = max(tick, last+1) // also if the clock is set back
		if s.last.CompareAndSwap(last, tick) {
			break
		}
	}
	random := rand.Uint64()
	var raw [12]byte
	binary.BigEndian.PutUint64(raw[:], tick<<2|random>>62)
	binary.BigEndian.PutUint32(raw[8:], uint32(random))
	var text [24]byte
	hex.Encode(text[:], raw[:])
	return string(text[:])
}
