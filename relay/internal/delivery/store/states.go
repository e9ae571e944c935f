package store

import (
	"context"
	_ "embed"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// State is the state of a sink.
type State string

// A paused or disabled sink keeps its backlog. The relay disables a sink, and enables it when its configuration
// changes. Only [States.Resume] ends a pause.
const (
	StateActive   State = "active"
	StatePaused   State = "paused"
	StateDisabled State = "disabled"
)

// IsOff reports whether the sink takes no deliveries.
func (s State) IsOff() bool { return s == StatePaused || s == StateDisabled }

// SinkState is the state of a sink on all nodes.
type SinkState struct {
	State State
	// Reason is a sentence about why the sink is paused or disabled.
	Reason string
	// Since is zero for an active sink.
	Since time.Time
	// Fingerprint identifies the configuration with which the sink was disabled.
	Fingerprint string
	// Resumed differs after each [States.Resume]. It is empty before the first, and may be empty while the sink is off.
	Resumed string
}

var (
	//go:embed scripts/pause.lua
	pauseSource string
	//go:embed scripts/signal_change.lua
	signalChangeSource string
	//go:embed scripts/disable.lua
	disableSource string
	//go:embed scripts/enable.lua
	enableSource string
	//go:embed scripts/resume.lua
	resumeSource string

	pauseScript        = redisconn.NewScript(pauseSource)
	signalChangeScript = redisconn.NewScript(redisconn.NextVersionLua + signalChangeSource)
	disableScript      = redisconn.NewScript(disableSource)
	enableScript       = redisconn.NewScript(enableSource)
	resumeScript       = redisconn.NewScript(resumeSource)
)

// States stores the states of sinks.
type States struct{ db }

func decodeSinkState(fields map[string]string) SinkState {
	s := SinkState{
		State: State(fields["state"]), Reason: fields["reason"], Fingerprint: fields["config"], Resumed: fields["resumed"],
	}
	if !s.State.IsOff() {
		return SinkState{State: StateActive, Resumed: s.Resumed}
	}
	s.Since, _ = time.Parse(time.RFC3339, fields["since"])
	return s
}

// Get returns the state of a sink. An unknown sink is active.
func (s *States) Get(ctx context.Context, sink string) (SinkState, error) {
	fields, err := s.client.HGetAll(ctx, StateKey(s.keys, sink)).Result()
	if err != nil {
		return SinkState{}, redisconn.WrapError("read sink state", err)
	}
	return decodeSinkState(fields), nil
}

// Pause stops deliveries of the sink on all nodes until [States.Resume], across restarts and changes of the
// configuration. Nodes follow within about a second and finish running attempts.
func (s *States) Pause(ctx context.Context, sink string) error {
	keys := []string{StateKey(s.keys, sink)}
	err := pauseScript.Run(ctx, s.client, keys, "paused by an operator", time.Now().UTC().Format(time.RFC3339)).Err()
	if err != nil {
		return redisconn.WrapError("pause sink", err)
	}
	return s.finishChange(ctx, sink)
}

// finishChange tells all nodes of a change of the state, and then waits until enough replicas have it.
func (s *States) finishChange(ctx context.Context, sink string) error {
	if err := s.signalChange(ctx); err != nil {
		return err
	}
	return redisconn.WrapError("replicate the state of the sink", s.confirmReplicas(ctx, StateKey(s.keys, sink)))
}

// Resume makes a paused or disabled sink active on all nodes within about a second. It reports whether the sink was
// disabled.
func (s *States) Resume(ctx context.Context, sink string) (wasDisabled bool, err error) {
	n, err := resumeScript.Run(ctx, s.client, []string{StateKey(s.keys, sink)}).Int()
	if err != nil {
		return false, redisconn.WrapError("resume sink", err)
	}
	// Without this, the next failure would disable the sink again.
	if err := s.clearFailures(ctx, sink); err != nil {
		return n == 1, err
	}
	return n == 1, s.finishChange(ctx, sink)
}

// DisableResult is the result of [States.Disable].
type DisableResult int

// The sink was paused or disabled for another reason, was active, or was disabled with the same arguments. The last may
// mean that the reply to an earlier try was lost.
const (
	DisableUnchanged DisableResult = iota
	DisableNew
	DisableRepeated
)

// Disable disables a sink unless it is paused.
func (s *States) Disable(
	ctx context.Context, sink, reason, fingerprint string, since time.Time,
) (DisableResult, error) {
	keys := []string{StateKey(s.keys, sink)}
	n, err := disableScript.Run(ctx, s.client, keys, reason, since.UTC().Format(time.RFC3339), fingerprint).Int()
	if err != nil {
		return DisableUnchanged, redisconn.WrapError("disable sink", err)
	}
	return DisableResult(n), s.finishChange(ctx, sink)
}

// Enable enables a sink that is disabled with this fingerprint. It reports whether this call did so.
func (s *States) Enable(ctx context.Context, sink, fingerprint string) (bool, error) {
	n, err := enableScript.Run(ctx, s.client, []string{StateKey(s.keys, sink)}, fingerprint).Int()
	if err != nil {
		return false, redisconn.WrapError("enable sink", err)
	}
	if err := s.clearFailures(ctx, sink); err != nil {
		return n == 1, err
	}
	return n == 1, s.finishChange(ctx, sink)
}

// SignalChange makes all nodes check all sinks within about a second.
func (s *States) SignalChange(ctx context.Context) error { return s.signalChange(ctx) }

// Version returns a value that differs after every change that a node should see at once.
func (s *States) Version(ctx context.Context) (string, error) {
	v, err := s.client.Get(ctx, ChangesKey(s.keys)).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", redisconn.WrapError("read version of sinks", err)
	}
	return v, nil
}
