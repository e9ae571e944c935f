package delivery

import (
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// The reasons why a delivery became a dead letter, for [Observer] and logs.
const (
	ReasonPermanent  = "permanent"
	ReasonExhausted  = "exhausted"
	ReasonUnreadable = "unreadable"
)

// Observer updates metrics. Its methods may be called concurrently and must not block.
type Observer interface {
	// Attempted is called after every attempt. attempt starts at 1, so a higher number is a retry.
	Attempted(sink string, attempt int, outcome relay.Outcome, duration time.Duration)
	// Failed is called after every failed attempt, with one of [attempt.FailureReasons].
	Failed(sink, reason string)
	// RetryScheduled is called when a delivery is scheduled for another attempt.
	RetryScheduled(sink string)
	// DeadLettered is called with one of the Reason constants.
	DeadLettered(sink, reason string)
	// DeadLettersDropped is called when the oldest n dead letters were dropped because there were too many.
	DeadLettersDropped(sink string, n int64)
	// Disabled is called when the sink becomes disabled or enabled on this node.
	Disabled(sink string, disabled bool)
	// Paused is called when the sink is paused or resumed on this node.
	Paused(sink string, paused bool)
	// CircuitChanged is called with false at first, and when the circuit breaker of this node opens or closes.
	CircuitChanged(sink string, open bool)
	// Throttled is called with false at first, and when a pause that the destination has asked for starts or ends on
	// this node.
	Throttled(sink string, throttled bool)
	// Batched is called when n notifications were sealed as one delivery.
	Batched(sink string, n int)
	// RetryLost is called for a scheduled delivery whose record is missing in Redis.
	RetryLost(sink string)
}

type noopObserver struct{}

func (noopObserver) Attempted(string, int, relay.Outcome, time.Duration) {}
func (noopObserver) Failed(string, string)                               {}
func (noopObserver) RetryScheduled(string)                               {}
func (noopObserver) DeadLettered(string, string)                         {}
func (noopObserver) DeadLettersDropped(string, int64)                    {}
func (noopObserver) Disabled(string, bool)                               {}
func (noopObserver) Paused(string, bool)                                 {}
func (noopObserver) CircuitChanged(string, bool)                         {}
func (noopObserver) Throttled(string, bool)                              {}
func (noopObserver) Batched(string, int)                                 {}
func (noopObserver) RetryLost(string)                                    {}
