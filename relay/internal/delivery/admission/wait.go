package admission

import (
	"context"
	"time"
)

// waitFor waits for a time, until changed is closed, or until stop is closed, which it reports. It returns the error of
// ctx if that ends first.
func waitFor(ctx context.Context, wait time.Duration, changed, stop <-chan struct{}) (stopped bool, err error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	case <-stop:
		return true, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
	return false, nil
}
