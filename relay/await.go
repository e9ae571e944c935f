package relay

import "context"

// Await receives one value from results and returns it with true. If results is closed, it returns the zero value
// with true. If ctx ends first, it returns false.
//
// A value that is already available wins over an ended ctx. On a busy machine both often become ready at the same
// time.
func Await[T any](ctx context.Context, results <-chan T) (result T, ok bool) {
	select {
	case result = <-results:
		return result, true
	case <-ctx.Done():
	}
	select {
	case result = <-results:
		return result, true
	default:
		return result, false
	}
}
