package relay

import "context"

// Await receives one value from results. If results is closed, it returns the zero value. If ctx ends first, it returns
// the cause of its end; set one with [context.WithTimeoutCause] if a person may read the error.
//
// A value that is already available wins over an ended ctx. On a busy machine both often become ready at the same
// time, and select would discard the value at random.
func Await[T any](ctx context.Context, results <-chan T) (T, error) {
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
