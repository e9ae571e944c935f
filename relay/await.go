package relay

import "context"

// Await returns what comes on answers, or its zero value once that is closed, and true. It returns false where ctx ends first.
// What is there already counts though ctx has ended as well: on a busy machine both are often noticed at the same moment.
func Await[T any](ctx context.Context, answers <-chan T) (answer T, there bool) {
	select {
	case answer = <-answers:
		return answer, true
	case <-ctx.Done():
	}
	select {
	case answer = <-answers:
		return answer, true
	default:
		return answer, false
	}
}
