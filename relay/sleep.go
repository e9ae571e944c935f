package relay

import (
	"context"
	"time"
)

// Sleep waits for d, or less where ctx ends, and reports whether it waited for all of it.
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
