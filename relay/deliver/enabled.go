package deliver

import (
	"context"
	"fmt"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

const stateRetry = time.Second

// isDisabled reports whether the sink takes no deliveries, by the last known state.
func (p *Pipeline) isDisabled() (off, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.off(), p.state != ""
}

func (s State) off() bool { return s == StatePaused || s == StateDisabled }

// WaitEnabled returns when the sink is known to be active, or with the error of ctx. The returned channel is closed
// when the sink is paused or disabled.
func (p *Pipeline) WaitEnabled(ctx context.Context) (<-chan struct{}, error) {
	for {
		p.mu.Lock()
		changed, state := p.changed, p.state
		p.mu.Unlock()
		if state == StateActive {
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
	p.epoch++
	p.mu.Unlock()
	asked := p.asking()
	s, err := p.o.Store.State(ctx, p.o.Name)
	if err != nil {
		return err
	}
	return p.apply(ctx, s, asked)
}

// asking must be called before Redis is asked for the state that apply takes over.
func (p *Pipeline) asking() (asked int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.epoch
}

// outdated tells whether this node has disabled the sink since it asked, or is about to store it.
func (p *Pipeline) outdated(asked int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.disabling > 0 || p.epoch != asked
}

// apply takes over what Redis says about the sink, and lifts what another configuration brought about.
func (p *Pipeline) apply(ctx context.Context, s SinkState, asked int) error {
	if p.outdated(asked) {
		return nil
	}
	if s.State == StateDisabled && s.config != "" && p.o.Fingerprint != "" && s.config != p.o.Fingerprint {
		recovered, err := p.o.Store.enable(ctx, p.o.Name, s.config)
		if recovered {
			// All sinks wait for what looks after them.
			telling, cancel := context.WithTimeout(ctx, lastChance)
			p.told(p.o.Notices.Recovered(telling, p.o.Name))
			cancel()
		}
		if err != nil {
			return fmt.Errorf("enable a sink whose configuration changed: %w", err)
		}
		s = SinkState{State: StateActive}
		p.o.Log.Info("sink enabled again, since its configuration changed")
	}
	p.set(s.State, s.Reason)
	return nil
}

func (p *Pipeline) set(state State, reason string) {
	p.mu.Lock()
	before := p.state
	p.state = state
	if before != state {
		close(p.changed)
		p.changed = make(chan struct{})
	}
	p.mu.Unlock()
	if before == state {
		return
	}
	p.o.Observer.Disabled(p.o.Name, state == StateDisabled)
	p.o.Observer.Paused(p.o.Name, state == StatePaused)
	switch state {
	case StatePaused:
		p.o.Log.Info("sink paused; its backlog is kept until it is resumed")
	case StateDisabled:
		p.o.Log.Error("sink disabled; its backlog is kept; to enable it, "+
			"resume it, or change its configuration", "reason", reason)
	case StateActive:
		if before != "" {
			p.o.Log.Info("sink enabled again")
		}
	}
}

// disable is the consequence of a receiver that is gone or has only failed for too long. Where it cannot be stored the next attempt finds out again.
func (p *Pipeline) disable(ctx context.Context, cause error) {
	reason := clip(cause.Error(), keptError)
	p.mu.Lock()
	p.disabling++
	p.epoch++
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.disabling--
		p.epoch++
		p.mu.Unlock()
	}()
	p.set(StateDisabled, reason)
	since, tries, found := p.o.Now(), 0, 0
	err := persist(ctx, func(ctx context.Context) error {
		tries++
		n, err := p.o.Store.disable(ctx, p.o.Name, reason, p.o.Fingerprint, since)
		if n == disabledNow || n == disabledBefore && tries > 1 {
			found = disabledNow
		}
		return err
	})
	if err != nil {
		p.o.Log.Warn("cannot store that the sink is disabled", "error", err)
	}
	if found == disabledNow {
		p.told(p.o.Notices.ofSink(ctx, relay.TopicSinkDisabled, p.o.Name, StateDisabled, reason))
	}
}

// told logs where other sinks could not be told what happened to this one.
func (p *Pipeline) told(err error) {
	if err != nil {
		p.o.Log.Warn("cannot tell other sinks what happened to this one", "error", err)
	}
}
