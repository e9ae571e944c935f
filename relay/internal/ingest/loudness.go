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
	// forgetBelow is the number of sent bytes below which a publisher is removed.
	forgetBelow = 100
)

// loudness counts the bytes that each publisher has sent in about the last ten seconds. It finds publishers that delay others. It
// may be used concurrently.
type loudness struct {
	mu        sync.Mutex
	decayedAt time.Time
	total     float64
	sent      map[string]float64 // bytes by publisher
}

func newLoudness() *loudness { return &loudness{sent: make(map[string]float64)} }

// countRequest counts the bytes of a request, and reports whether its publisher is loud: it has sent more than loudBytes, and more
// than the average of all publishers. The only publisher is not loud.
func (l *loudness) countRequest(publisher string, bytes int) (isLoud bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.decayedAt) >= time.Second {
		l.reduceCounts(now)
	}
	l.sent[publisher] += float64(bytes)
	l.total += float64(bytes)
	sent := l.sent[publisher]
	return sent > loudBytes && sent*float64(len(l.sent)) > l.total
}

// reduceCounts reduces the bytes of all publishers, and removes publishers that have sent nothing for a while.
func (l *loudness) reduceCounts(now time.Time) {
	factor := math.Pow(sentDecay, now.Sub(l.decayedAt).Seconds())
	l.decayedAt, l.total = now, 0
	for publisher, bytes := range l.sent {
		if bytes *= factor; bytes < forgetBelow {
			delete(l.sent, publisher)
			continue
		}
		l.sent[publisher] = bytes
		l.total += bytes
	}
}
