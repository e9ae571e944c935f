package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

var (
	//go:embed scripts/state_lock.lua
	lockStateSource string
	//go:embed scripts/state_save.lua
	saveStateSource string

	lockStateScript = redisconn.NewScript(lockStateSource)
	saveStateScript = redisconn.NewScript(saveStateSource)
)

// SharedStates stores the values that sinks share between nodes and across restarts.
type SharedStates struct{ db }

// ForSink returns the values of one sink.
func (s *SharedStates) ForSink(sink string) relay.SharedState { return sharedState{s, sink} }

type sharedState struct {
	*SharedStates
	sink string
}

// sharedStateLock is a locked name. Its mark is unique.
type sharedStateLock struct {
	*SharedStates
	key, mark string
}

// Lock implements [relay.SharedState].
func (s sharedState) Lock(ctx context.Context, name string, hold time.Duration) (string, relay.StateLock, error) {
	sum := sha256.Sum256([]byte(name)) // a name may have any length and any characters
	l := sharedStateLock{s.SharedStates, SharedStateKey(s.keys, s.sink, hex.EncodeToString(sum[:12])), rand.Text()}
	reply, err := lockStateScript.Run(ctx, s.client, []string{l.key}, l.mark, hold.Milliseconds()).Slice()
	switch {
	case err != nil:
		return "", nil, redisconn.WrapError("lock shared state", err)
	case len(reply) == 0:
		return "", nil, relay.ErrLocked
	}
	value, _ := reply[0].(string)
	return value, l, nil
}

// Save implements [relay.StateLock].
func (l sharedStateLock) Save(ctx context.Context, value string, ttl time.Duration) error {
	if len(value) > relay.MaxSharedValue {
		return fmt.Errorf("keep shared state: the value has %d bytes, the maximum is %d", len(value), relay.MaxSharedValue)
	}
	return l.unlock(ctx, "keep", value, ttl)
}

// Release implements [relay.StateLock].
func (l sharedStateLock) Release(ctx context.Context) error { return l.unlock(ctx, "release", "", 0) }

func (l sharedStateLock) unlock(ctx context.Context, mode, value string, ttl time.Duration) error {
	err := saveStateScript.Run(ctx, l.client, []string{l.key}, l.mark, mode, value, ttl.Milliseconds()).Err()
	if err != nil {
		return fmt.Errorf("%s shared state: %w", mode, err)
	}
	return nil
}
