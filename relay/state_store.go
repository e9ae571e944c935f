package relay

import (
	"context"
	"errors"
	"time"
)

// StateStore is what a [Sink] remembers of the things that it writes about: for all nodes and over restarts, under names of its own,
// each for a while. It may be used concurrently.
type StateStore interface {
	// Lock returns what is remembered under a name, empty where nothing is, and holds the name: until Keep or Release nobody else
	// can take it, on any node, but for hold at most, so that a node that dies keeps it no longer. It fails with an error that is
	// [ErrLocked] where somebody else has it, and does not wait.
	Lock(ctx context.Context, name string, hold time.Duration) (value string, held StateLock, err error)
}

// StateLock is a name that was taken. It is used by one goroutine, and settled once.
type StateLock interface {
	// Save remembers value for so long and lets go; an empty value is forgotten. Where the name was held for too long and somebody
	// else has taken it, that one's value counts, if there is one.
	Save(ctx context.Context, value string, ttl time.Duration) error
	// Release lets go and changes nothing.
	Release(ctx context.Context) error
}

// ErrLocked says that somebody else holds a name of a [StateStore].
var ErrLocked = errors.New("somebody else is at it")
