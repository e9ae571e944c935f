package ingest

import (
	"math"
	"sync"
	"time"
)

const (
	// sentDecay is the part of the sent bytes that still counts after a second.
	sentDecay = 0.9
	// loudBytes is the number of sent bytes above which a publisher can be loud.
	loudBytes = 4 << 20
	// eventBytes is added for each event, because readers of the log need as long for a small event as for this many bytes.
	eventBytes = 256
	// forgetAfter is the time after which a publisher that sends nothing is removed. Until then, others must not delay its streams.
	forgetAfter = 10 * time.Minute
)

// loudness counts the bytes that each publisher has sent in about the last ten seconds. It finds publishers that delay others. It
// may be used concurrently.
type loudness struct {
	mu        sync.Mutex
	decayedAt time.Time
	total     float64
	sent      map[string]*sentBytes // by publisher
}

type sentBytes struct {
	bytes float64
	last  time.Time
}

func newLoudness() *loudness { return &loudness{sent: make(map[string]*sentBytes)} }

// countRequest counts the bytes of a request, and reports whether its publisher is loud: it has sent more than loudBytes, and more
// than the average of all publishers. The only publisher is not loud, unless it has others: events of other accounts that come from
// other nodes, the inbox or sources.
func (l *loudness) countRequest(publisher string, bytes int, hasOthers bool) (isLoud bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Sub(l.decayedAt) >= time.Second {
		l.reduceCounts(now)
	}
	s := l.sent[publisher]
	if s == nil {
		s = new(sentBytes)
		l.sent[publisher] = s
	}
	s.bytes, s.last = s.bytes+float64(bytes), now
	l.total += float64(bytes)
	count := len(l.sent)
	if hasOthers {
		count++
	}
	return s.bytes > loudBytes && s.bytes*float64(count) > l.total
}

// countEvents counts the events of a request that countRequest has counted.
func (l *loudness) countEvents(publisher string, n int) {
	l.countRequest(publisher, n*eventBytes, false)
}

// reduceCounts reduces the bytes of all publishers, and removes publishers that have sent nothing for a while.
func (l *loudness) reduceCounts(now time.Time) {
	factor := math.Pow(sentDecay, now.Sub(l.decayedAt).Seconds())
	l.decayedAt, l.total = now, 0
	for publisher, s := range l.sent {
		if now.Sub(s.last) >= forgetAfter {
			delete(l.sent, publisher)
			continue
		}
		s.bytes *= factor
		l.total += s.bytes
	}
}
