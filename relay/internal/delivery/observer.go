package delivery

import (
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// Why a delivery became a dead letter, as [Observer] and logs name it.
const (
	ReasonPermanent  = "permanent"
	ReasonExhausted  = "exhausted"
	ReasonUnreadable = "unreadable"
)

// Observer is told what happens, for metrics. Its methods may be called concurrently and must not block.
type Observer interface {
	// Attempted is called after every attempt; attempt counts from 1, so a higher one is a retry.
	Attempted(sink string, attempt int, outcome relay.Outcome, took time.Duration)
	// Failed is called after every failed attempt, with one of [FailureReasons].
	Failed(sink, reason string)
	// RetryScheduled is called when a delivery waits for another attempt.
	RetryScheduled(sink string)
	// DeadLettered is called with one of the Reason constants.
	DeadLettered(sink, reason string)
	// DeadLettersDropped is called when the oldest dead letters had to go, since there were too many.
	DeadLettersDropped(sink string, n int64)
	// Disabled is called when the sink becomes disabled or enabled on this node.
	Disabled(sink string, disabled bool)
	// Paused is called when the sink becomes paused or is no longer paused on this node.
	Paused(sink string, paused bool)
	// CircuitChanged is called with false at first, and when the sink's destination is found to be down or up again by this node.
	CircuitChanged(sink string, down bool)
	// Throttled is called with false at first, and when this node begins or ends to leave the sink's destination alone, which said
	// that it gets too much.
	Throttled(sink string, held bool)
	// Batched is called when so many notifications were sealed as one delivery.
	Batched(sink string, n int)
	// RetryLost is called for a parked delivery whose body is gone from Redis.
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
