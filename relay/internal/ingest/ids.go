package ingest

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
)

// idSource generates IDs of 24 hexadecimal digits: 32 bits of seconds, 30 bits of nanoseconds, and 34 random bits. The IDs of
// one source increase, unless the clock is set back by more than maxAhead. A counter would tell each publisher how much others
// publish. It may be used concurrently.
type idSource struct {
	last atomic.Uint64 // seconds and nanoseconds
	now  func() time.Time
}

// maxAhead is the maximum time by which IDs may be ahead of the clock. Otherwise an event of a node whose clock was wrong for a
// moment would have a time in the future long after that, and could not be found by its time.
const maxAhead = 10 * time.Second

func newIDSource() *idSource { return &idSource{now: time.Now} }

// next returns the first ID of a request with up to count notifications. [eventlog.DeriveID] returns the others, and next never
// returns one of them.
func (s *idSource) next(count int) string {
	now := s.now()
	tick := uint64(uint32(now.Unix()))<<30 | uint64(now.Nanosecond())
	for {
		last, next := s.last.Load(), tick
		if last >= tick && last-tick <= uint64(maxAhead/time.Second)<<30 {
			next = last + 1
		}
		if s.last.CompareAndSwap(last, next+uint64(count)-1) {
			tick = next
			break
		}
	}
	return eventlog.FormatID(tick, rand.Uint64())
}
