package delivery

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// State says whether a sink takes deliveries.
type State string

// The states of a sink. A paused or disabled one keeps its backlog; a disabled one was disabled by the relay and is
// enabled when its configuration changes, a paused one only by [Store.Resume].
const (
	StateActive   State = "active"
	StatePaused   State = "paused"
	StateDisabled State = "disabled"
)

// SinkState is the state of a sink as all nodes share it.
type SinkState struct {
	State State
	// Reason says in a sentence why the sink is paused or disabled.
	Reason string
	// Since is zero for an active sink.
	Since time.Time

	config string // the fingerprint under which it was disabled
}

var (
	//go:embed scripts/pause.lua
	pauseSource string
	//go:embed scripts/disable.lua
	disableSource string
	//go:embed scripts/enable.lua
	enableSource string
	//go:embed scripts/resume.lua
	resumeSource string

	pauseScript   = redis.NewScript(pauseSource)
	disableScript = redis.NewScript(disableSource)
	enableScript  = redis.NewScript(enableSource)
	resumeScript  = redis.NewScript(resumeSource)
)

func decodeSinkState(fields map[string]string) SinkState {
	s := SinkState{State: State(fields["state"]), Reason: fields["reason"], config: fields["config"]}
	if s.State != StatePaused && s.State != StateDisabled {
		return SinkState{State: StateActive}
	}
	s.Since, _ = time.Parse(time.RFC3339, fields["since"])
	return s
}

// State returns the state of a sink; one that nobody knows is active.
func (s *Store) State(ctx context.Context, sink string) (SinkState, error) {
	fields, err := s.client.HGetAll(ctx, s.keys.SinkState(sink)).Result()
	if err != nil {
		return SinkState{}, fmt.Errorf("read a sink's state: %w", err)
	}
	return decodeSinkState(fields), nil
}

// Pause keeps all nodes from beginning deliveries of the sink until [Store.Resume], over restarts and changes of the
// configuration. Nodes follow within about a second; what they have in hand they finish.
func (s *Store) Pause(ctx context.Context, sink string) error {
	keys := []string{s.keys.SinkState(sink)}
	err := pauseScript.Run(ctx, s.client, keys, "paused by an operator", time.Now().UTC().Format(time.RFC3339)).Err()
	if err != nil {
		return fmt.Errorf("store that a sink is paused: %w", err)
	}
	return s.signalChange(ctx)
}

// Resume makes a paused or disabled sink active again on all nodes, within about a second. It reports whether the sink
// was disabled.
func (s *Store) Resume(ctx context.Context, sink string) (recovered bool, err error) {
	n, err := resumeScript.Run(ctx, s.client, []string{s.keys.SinkState(sink)}).Int()
	if err != nil {
		return false, fmt.Errorf("store that a sink is active: %w", err)
	}
	// What failed before counts no more, else the first failure would disable it again.
	if err := s.clearFailures(ctx, sink); err != nil {
		return n == 1, err
	}
	return n == 1, s.signalChange(ctx)
}

// signalChange makes all nodes look at all sinks within [changePollInterval].
func (s *Store) signalChange(ctx context.Context) error {
	if err := s.client.Incr(ctx, s.keys.SinkChanges()).Err(); err != nil {
		return fmt.Errorf("tell the nodes about a change: %w", err)
	}
	return nil
}

// changeToken returns something that differs after every touch.
func (s *Store) changeToken(ctx context.Context) (string, error) {
	n, err := s.client.Get(ctx, s.keys.SinkChanges()).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", fmt.Errorf("ask for changes of sinks: %w", err)
	}
	return n, nil
}

// What disable found.
const (
	newlyDisabled   = 1
	alreadyDisabled = 2 // by the same words, so perhaps by a try whose reply was lost
)

// disable stores that a sink is disabled, and returns neither of the constants where it was paused or disabled already.
func (s *Store) disable(ctx context.Context, sink, reason, config string, since time.Time) (int, error) {
	keys := []string{s.keys.SinkState(sink)}
	n, err := disableScript.Run(ctx, s.client, keys, reason, since.UTC().Format(time.RFC3339), config).Int()
	if err != nil {
		return 0, fmt.Errorf("store that a sink is disabled: %w", err)
	}
	return n, s.signalChange(ctx)
}

// enableIfChanged lifts what another configuration brought about. It reports whether it did, and not another node.
func (s *Store) enableIfChanged(ctx context.Context, sink, config string) (bool, error) {
	n, err := enableScript.Run(ctx, s.client, []string{s.keys.SinkState(sink)}, config).Int()
	if err != nil {
		return false, fmt.Errorf("store that a sink is enabled: %w", err)
	}
	if err := s.clearFailures(ctx, sink); err != nil {
		return n == 1, err
	}
	return n == 1, s.signalChange(ctx)
}

// SinkStats is what Redis knows of a sink.
type SinkStats struct {
	SinkState
	// Scheduled deliveries wait for another attempt; Dead ones do not.
	Scheduled, DeadLetters int64
	// OldestRetryAge is how long the parked delivery that came first has waited, by the clock of Redis, or for how long a digest
	// should have been sealed; zero where there is neither.
	OldestRetryAge time.Duration
	// Since Redis knows the sink, on all nodes; a node that is killed takes about a second of it along.
	Delivered, Retried int64
	// Dropped counts what the sink's backlog had no room for: notifications of its queue, and dead letters.
	Dropped int64
	// Failed counts failed attempts by reason, those of [FailureReasons]; nil where there was none.
	Failed map[string]int64
	// LastSuccess is when something was delivered last, zero for never.
	LastSuccess time.Time
	// LastError says how the attempt failed that failed last, in at most 512 bytes and without secrets; LastErrorAt is when it
	// did. They stay when something is delivered later, and are empty where none ever failed.
	LastError   string
	LastErrorAt time.Time
	// InDigests notifications wait for the digest that they are a part of to be sealed.
	InDigests int64
}

// Stats returns what Redis knows of each sink, in their order.
func (s *Store) Stats(ctx context.Context, sinks []string) ([]SinkStats, error) {
	if len(sinks) == 0 {
		return nil, nil
	}
	list := make([]SinkStats, len(sinks))
	states := make([]*redis.MapStringStringCmd, len(sinks))
	happened := make([]*redis.MapStringStringCmd, len(sinks))
	parked, dead := make([]*redis.IntCmd, len(sinks)), make([]*redis.IntCmd, len(sinks))
	since, digests := make([]*redis.ZSliceCmd, len(sinks)), make([]*redis.ZSliceCmd, len(sinks))
	var now *redis.TimeCmd
	gathering := make([]*redis.SliceCmd, len(sinks))
	_, err := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, sink := range sinks {
			states[i] = pipe.HGetAll(ctx, s.keys.SinkState(sink))
			gathering[i] = pipe.MGet(ctx, s.keys.DigestCount(sink))
			parked[i] = pipe.ZCard(ctx, s.keys.RetrySchedule(sink))
			dead[i] = pipe.XLen(ctx, s.keys.DeadLetters(sink))
			since[i] = pipe.ZRangeWithScores(ctx, s.keys.RetryArrival(sink), 0, 0)
			digests[i] = pipe.ZRangeWithScores(ctx, s.keys.Digests(sink), 0, 0)
			happened[i] = pipe.HGetAll(ctx, s.keys.SinkStats(sink))
		}
		now = pipe.Time(ctx)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the figures of sinks: %w", err)
	}
	for i := range list {
		list[i] = SinkStats{SinkState: decodeSinkState(states[i].Val()), Scheduled: parked[i].Val(), DeadLetters: dead[i].Val()}
		list[i].decode(happened[i].Val())
		for _, first := range append(since[i].Val(), digests[i].Val()...) {
			list[i].OldestRetryAge = max(list[i].OldestRetryAge, now.Val().Sub(time.UnixMilli(int64(first.Score))))
		}
		if values := gathering[i].Val(); len(values) == 1 && values[0] != nil {
			list[i].InDigests, _ = strconv.ParseInt(fmt.Sprint(values[0]), 10, 64)
		}
	}
	return list, nil
}

// HasState reports whether Redis holds a state, parked or gathered deliveries, or dead letters of the sink.
func (s *Store) HasState(ctx context.Context, sink string) (bool, error) {
	f, err := s.Stats(ctx, []string{sink})
	if err != nil {
		return false, err
	}
	return f[0].State != StateActive || f[0].Scheduled+f[0].InDigests+f[0].DeadLetters > 0, nil
}

// Forget removes the state, the delay queue and the open digests of a sink that no node has in its configuration any more,
// and its dead letters where asked to.
func (s *Store) Forget(ctx context.Context, sink string, deadLetters bool) error {
	if err := s.forgetDigests(ctx, sink); err != nil {
		return err
	}
	_, err := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, key := range s.retryQueueKeys(sink, s.keys.SinkState(sink), s.keys.FailureStart(sink), s.keys.SinkStats(sink)) {
			pipe.Unlink(ctx, key)
		}
		if deadLetters {
			pipe.Unlink(ctx, s.keys.DeadLetters(sink))
			pipe.Unlink(ctx, s.keys.DeadIndex(sink))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("forget a sink: %w", err)
	}
	return nil
}
