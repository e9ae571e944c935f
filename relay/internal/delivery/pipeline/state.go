package pipeline

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// stateRetryDelay is the delay after the state of a sink could not be read.
const stateRetryDelay = time.Second

// stateStage stops items of a paused or disabled sink.
type stateStage struct {
	next  Handler
	state *sinkState
}

func (s *stateStage) Handle(ctx context.Context, it *Item) error {
	if off, _ := s.state.Off(); off {
		return ErrDisabled
	}
	return s.next.Handle(ctx, it)
}

// sinkState is the state of a sink as this node knows it.
type sinkState struct {
	opts     *Options
	stopping context.Context // of the pipeline
	store    *store.States
	onResume func(context.Context) error // called when an operator has resumed the sink, whatever its state was

	mu       sync.Mutex
	current  store.State   // empty before it was read
	resumed  string        // the last known value of [store.SinkState.Resumed]
	changed  chan struct{} // closed and replaced when current or unavailable changes
	disables int           // number of running disable calls
	counter  int           // rises when a state that is being read becomes out of date
	// outage makes the sink unavailable on this node when it fires. It is nil while the sink can make attempts.
	outage      *time.Timer
	unavailable bool
}

func newSinkState(stopping context.Context, o *Options, onResume func(context.Context) error) *sinkState {
	return &sinkState{
		opts: o, stopping: stopping, store: &o.Store.States, onResume: onResume, changed: make(chan struct{}),
	}
}

// Off reports whether the sink takes no deliveries on this node, according to the last known state. The channel is closed when
// that may have changed.
func (s *sinkState) Off() (off bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current.IsOff() || s.unavailable, s.changed
}

// isActive reports whether the sink is known to take deliveries.
func (s *sinkState) isActive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current == store.StateActive
}

// State returns the state of the sink as this node knows it. It is empty before it was read.
func (p *Pipeline) State() store.State {
	p.state.mu.Lock()
	defer p.state.mu.Unlock()
	return p.state.current
}

// WaitEnabled returns when the sink is active and can make attempts on this node, or with the error of ctx. The channel is closed
// when that may have changed.
func (p *Pipeline) WaitEnabled(ctx context.Context) (<-chan struct{}, error) {
	s := p.state
	for {
		s.mu.Lock()
		changed, state, unavailable := s.changed, s.current, s.unavailable
		s.mu.Unlock()
		if state == store.StateActive && !unavailable {
			return changed, nil
		}
		var retry <-chan time.Time
		if state == "" {
			if p.Refresh(ctx) == nil {
				continue
			}
			retry = time.After(stateRetryDelay)
		}
		select {
		case <-changed:
		case <-retry:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Refresh reads the state of the sink at once. It discards the result of reads that have already started.
func (p *Pipeline) Refresh(ctx context.Context) error {
	s := p.state
	s.mu.Lock()
	s.counter++
	version := s.counter
	s.mu.Unlock()
	state, err := s.store.Get(ctx, s.opts.Name)
	if err != nil {
		return err
	}
	return s.applyStored(ctx, state, version)
}

// readVersion must be called before the state is read that is passed to applyStored.
func (s *sinkState) readVersion() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counter
}

// isStale reports whether this node has disabled the sink since the version, or is storing that.
func (s *sinkState) isStale(version int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.disables > 0 || s.counter != version
}

// applyStored takes over a state from Redis. It enables a sink that was disabled with a different configuration.
func (s *sinkState) applyStored(ctx context.Context, state store.SinkState, version int) error {
	if s.isStale(version) {
		return nil
	}
	o := s.opts
	if state.State == store.StateDisabled && state.Fingerprint != "" && o.Fingerprint != "" &&
		state.Fingerprint != o.Fingerprint {
		recovered, err := s.store.Enable(ctx, o.Name, state.Fingerprint)
		if recovered {
			// A shorter limit than the publisher's, because polling for all sinks waits for this.
			ctx, cancel := context.WithTimeout(ctx, store.CommandTimeout)
			s.reportNotice(o.Notices.SinkRecovered(ctx, o.Name))
			cancel()
		}
		if err != nil {
			return fmt.Errorf("enable sink after a change of its configuration: %w", err)
		}
		state = store.SinkState{State: store.StateActive}
		o.Log.Info("sink resumed because its configuration changed")
	}
	isResumed := s.noteResumed(state.Resumed)
	s.set(state.State, state.Reason)
	if isResumed {
		return s.onResume(ctx)
	}
	return nil
}

// noteResumed reports whether the sink was resumed since the state was last read.
func (s *sinkState) noteResumed(resumed string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if resumed == "" || resumed == s.resumed {
		return false
	}
	s.resumed = resumed
	return s.current != ""
}

func (s *sinkState) set(state store.State, reason string) {
	s.mu.Lock()
	before := s.current
	s.current = state
	if before != state {
		close(s.changed)
		s.changed = make(chan struct{})
	}
	s.mu.Unlock()
	if before == state {
		return
	}
	o := s.opts
	switch state {
	case store.StatePaused:
		o.Log.Info("sink paused, it keeps its backlog until it is resumed")
	case store.StateDisabled:
		o.Log.Error("sink disabled, it keeps its backlog; resume it or change its configuration to enable it",
			"reason", reason)
	case store.StateActive:
		if before != "" {
			o.Log.Info("sink resumed")
		}
	}
}

// disable disables the sink on all nodes. If that cannot be stored, the next attempt has the same outcome again.
func (s *sinkState) disable(ctx context.Context, cause error) {
	o := s.opts
	reason := store.Truncate(cause.Error(), store.MaxErrorBytes)
	s.countDisable(1)
	defer s.countDisable(-1)
	s.set(store.StateDisabled, reason)
	since, tries, isNew := o.Now(), 0, false
	err := store.Persist(ctx, func(ctx context.Context) error {
		tries++
		result, err := s.store.Disable(ctx, o.Name, reason, o.Fingerprint, since)
		// A repetition means that the reply to an earlier try was lost.
		isNew = isNew || result == store.DisableNew || result == store.DisableRepeated && tries > 1
		return err
	})
	if err != nil {
		o.Log.Warn("disabled state of a sink could not be stored", "error", err)
	}
	if isNew {
		if o.OnDisabled != nil {
			o.OnDisabled(reason)
		}
		s.reportNotice(o.Notices.SinkDisabled(ctx, o.Name, reason))
	}
}

func (s *sinkState) countDisable(n int) {
	s.mu.Lock()
	s.disables += n
	s.counter++
	s.mu.Unlock()
}

func (s *sinkState) reportNotice(err error) {
	if err != nil {
		s.opts.Log.Warn("event about a sink could not be sent to other sinks", "error", err)
	}
}
