package delivery

import "time"

// The reasons why a delivery became a dead letter, for [Observer] and logs.
const (
	ReasonPermanent  = "permanent"
	ReasonExhausted  = "exhausted"
	ReasonUnreadable = "unreadable"
)

// Observer updates metrics. Its methods may be called concurrently and must not block.
type Observer interface {
	// Attempted is called after every attempt. attempt starts at 1, so a higher number is a retry. failure is one of
	// [attempt.FailureReasons], or empty if the event was delivered.
	Attempted(sink string, attempt int, failure string, duration time.Duration)
	// DeadLettered is called with one of the Reason constants.
	DeadLettered(sink, reason string)
	// DeadLettersDropped is called when the oldest n dead letters were dropped because there were too many.
	DeadLettersDropped(sink string, n int64)
	// Batched is called when n notifications were sealed as one delivery.
	Batched(sink string, n int)
	// RetryLost is called for a scheduled delivery whose record is missing in Redis.
	RetryLost(sink string)
}

type noopObserver struct{}

func (noopObserver) Attempted(string, int, string, time.Duration) {}
func (noopObserver) DeadLettered(string, string)                  {}
func (noopObserver) DeadLettersDropped(string, int64)             {}
func (noopObserver) Batched(string, int)                          {}
func (noopObserver) RetryLost(string)                             {}
