package delivery

import (
	"context"
	"fmt"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

const stateRetry = time.Second

// isDisabled reports whether the sink takes no deliveries, by the last known state.
func (p *Pipeline) isDisabled() (off, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.IsOff(), p.state != ""
}

// WaitEnabled returns when the sink is known to be active, or with the error of ctx. The returned channel is closed
// when the sink is paused or disabled.
func (p *Pipeline) WaitEnabled(ctx context.Context) (<-chan struct{}, error) {
	for {
		p.mu.Lock()
		changed, state := p.stateChanged, p.state
		p.mu.Unlock()
		if state == store.StateActive {
			return changed, nil
		}
		var retry <-chan time.Time
		if state == "" {
			if p.Refresh(ctx) == nil {
				continue
			}
			retry = time.After(stateRetry)
		}
		select {
		case <-changed:
		case <-retry:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Refresh reads the sink's state now, so that this node follows a change without waiting for its next look. What was asked
// before does not count any more.
func (p *Pipeline) Refresh(ctx context.Context) error {
	p.mu.Lock()
	p.stateVersion++
	p.mu.Unlock()
	asked := p.stateEpoch()
	s, err := p.opts.Store.States.Get(ctx, p.opts.Name)
	if err != nil {
		return err
	}
	return p.applyState(ctx, s, asked)
}

// stateEpoch must be called before Redis is asked for the state that apply takes over.
func (p *Pipeline) stateEpoch() (asked int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stateVersion
}

// isStateStale tells whether this node has disabled the sink since it asked, or is about to store it.
func (p *Pipeline) isStateStale(asked int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pendingDisables > 0 || p.stateVersion != asked
}

// applyState takes over what Redis says about the sink, and lifts what another configuration brought about.
func (p *Pipeline) applyState(ctx context.Context, s store.SinkState, asked int) error {
	if p.isStateStale(asked) {
		return nil
	}
	if s.State == store.StateDisabled && s.Fingerprint != "" && p.opts.Fingerprint != "" && s.Fingerprint != p.opts.Fingerprint {
		recovered, err := p.opts.Store.States.Enable(ctx, p.opts.Name, s.Fingerprint)
		if recovered {
			// All sinks wait for what looks after them.
			telling, cancel := context.WithTimeout(ctx, redisTimeout)
			p.logNoticeError(p.opts.Notices.Recovered(telling, p.opts.Name))
			cancel()
		}
		if err != nil {
			return fmt.Errorf("enable a sink whose configuration changed: %w", err)
		}
		s = store.SinkState{State: store.StateActive}
		p.opts.Log.Info("sink enabled again, since its configuration changed")
	}
	p.setState(s.State, s.Reason)
	return nil
}

func (p *Pipeline) setState(state store.State, reason string) {
	p.mu.Lock()
	before := p.state
	p.state = state
	if before != state {
		close(p.stateChanged)
		p.stateChanged = make(chan struct{})
	}
	p.mu.Unlock()
	if before == state {
		return
	}
	p.opts.Observer.Disabled(p.opts.Name, state == store.StateDisabled)
	p.opts.Observer.Paused(p.opts.Name, state == store.StatePaused)
	switch state {
	case store.StatePaused:
		p.opts.Log.Info("sink paused; its backlog is kept until it is resumed")
	case store.StateDisabled:
		p.opts.Log.Error("sink disabled; its backlog is kept; to enable it, "+
			"resume it, or change its configuration", "reason", reason)
	case store.StateActive:
		if before != "" {
			p.opts.Log.Info("sink enabled again")
		}
	}
}

// disable is the consequence of a receiver that is gone or has only failed for too long. Where it cannot be stored the next attempt finds out again.
func (p *Pipeline) disable(ctx context.Context, cause error) {
	reason := store.Truncate(cause.Error(), store.MaxErrorBytes)
	p.mu.Lock()
	p.pendingDisables++
	p.stateVersion++
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.pendingDisables--
		p.stateVersion++
		p.mu.Unlock()
	}()
	p.setState(store.StateDisabled, reason)
	since, tries, found := p.opts.Now(), 0, false
	err := retryWrite(ctx, func(ctx context.Context) error {
		tries++
		n, err := p.opts.Store.States.Disable(ctx, p.opts.Name, reason, p.opts.Fingerprint, since)
		found = found || n == store.DisableNew || n == store.DisableRepeated && tries > 1
		return err
	})
	if err != nil {
		p.opts.Log.Warn("cannot store that the sink is disabled", "error", err)
	}
	if found {
		p.logNoticeError(p.opts.Notices.sendSinkNotice(ctx, relay.TopicSinkDisabled, p.opts.Name, store.StateDisabled, reason))
	}
}

// logNoticeError logs where other sinks could not be told what happened to this one.
func (p *Pipeline) logNoticeError(err error) {
	if err != nil {
		p.opts.Log.Warn("cannot tell other sinks what happened to this one", "error", err)
	}
}
