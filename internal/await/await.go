// Package await waits for a time or a value until a context ends.
package await

import (
	"context"
	"time"
)

// Duration waits for d or until ctx ends. It reports whether the full time has passed.
func Duration(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Value receives one value from results. If results is closed, it returns the zero value. If ctx ends first, it returns
// the cause of its end; set one with [context.WithTimeoutCause] if a person may read the error.
//
// A value that is already available wins over an ended ctx. On a busy machine both often become ready at the same
// time, and select would discard the value at random.
func Value[T any](ctx context.Context, results <-chan T) (T, error) {
	select {
	case result := <-results:
		return result, nil
	case <-ctx.Done():
	}
	select {
	case result := <-results:
		return result, nil
	default:
		var zero T
		return zero, context.Cause(ctx)
	}
}
