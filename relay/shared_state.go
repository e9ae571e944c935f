package relay

import (
	"context"
	"errors"
	"time"
)

// SharedState keeps small values that a [Sink] shares between nodes and across restarts, such as the ID of a
// message it may edit later. Each sink has its own namespace, and values expire. A StateStore may be used
// concurrently.
type SharedState interface {
	// Lock locks name and returns its value, or "" if it has none. The lock ends with Save, Release, or after hold,
	// so the lock of a failed node expires. If the name is already locked, on any node, Lock does not wait and
	// returns an error that wraps [ErrLocked].
	Lock(ctx context.Context, name string, hold time.Duration) (value string, held StateLock, err error)
}

// StateLock is a locked name of a [SharedState]. It is used by one goroutine, and either Save or Release is called
// once.
type StateLock interface {
	// Save stores value for ttl and unlocks the name. An empty value deletes the entry. If the lock has expired and
	// another holder has locked or saved the name, Save changes nothing.
	Save(ctx context.Context, value string, ttl time.Duration) error
	// Release unlocks the name without a change.
	Release(ctx context.Context) error
}

// ErrLocked reports that a name of a [SharedState] is locked.
var ErrLocked = errors.New("state is locked by another holder")
