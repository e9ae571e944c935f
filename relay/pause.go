package relay

import (
	"context"
	"time"
)

// Pause waits for d, or less where ctx ends, and reports whether it waited for all of it.
func Pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
