package relay

import (
	"context"
	"time"
)

// Sleep waits for d or until ctx ends. It reports whether the full time has passed.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
