package httpserver

import (
	"sync/atomic"
	"time"
)

// The budget of a connection for HTTP/2 frames that carry no request and no content. Each frame costs frameCost. A response
// earns one per bytesPerCredit, so that a client may update the window for what it has received.
const (
	maxFrameCredits     = 40_000
	frameCreditsPerSec  = 2_000
	frameCost           = 4
	requestFrameCredits = 8
	bytesPerCredit      = 16
)

// frameBudget limits frames that cost only CPU time: PING, SETTINGS, WINDOW_UPDATE, CONTINUATION, empty DATA and others. spend
// belongs to the reader of the connection; earn may be called concurrently. The zero value is a full budget.
type frameBudget struct {
	used     atomic.Int64
	lastTime time.Time
}

// earn adds the credits of a response of n bytes.
func (b *frameBudget) earn(n int) {
	if b.used.Load() > 0 {
		b.used.Add(-int64(n / bytesPerCredit))
	}
}

// spend reports whether the client may send so many frames. requests is the number of requests among the bytes with them.
func (b *frameBudget) spend(frames, requests int, now time.Time) bool {
	earned := int64(requests) * requestFrameCredits
	if elapsed := now.Sub(b.lastTime); elapsed > 0 {
		earned += min(int64(elapsed/(time.Second/frameCreditsPerSec)), maxFrameCredits)
		b.lastTime = now
	}
	used := max(b.used.Add(-earned), 0)
	used += int64(frames) * frameCost
	b.used.Store(used)
	return used <= maxFrameCredits
}
