package deliver

import (
	"context"
	"time"
)

const stateRetry = time.Second

// isDisabled reports the last known state.
func (p *Pipeline) isDisabled() (off, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.disabled, p.known
}

// WaitEnabled returns when the sink is known to be enabled, or with the error of ctx. The returned channel is closed
// when the sink is disabled.
func (p *Pipeline) WaitEnabled(ctx context.Context) (<-chan struct{}, error) {
	for {
		p.mu.Lock()
		changed, known, off := p.changed, p.known, p.disabled
		p.mu.Unlock()
		if known && !off {
			return changed, nil
		}
		var retry <-chan time.Time
		if !known {
			s, err := p.o.Store.state(ctx, p.o.Name)
			if err == nil {
				p.apply(ctx, s)
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

// apply takes over what Redis says about the sink, and lifts what another configuration brought about.
func (p *Pipeline) apply(ctx context.Context, s state) {
	if s.disabled && s.config != "" && p.o.Fingerprint != "" && s.config != p.o.Fingerprint {
		if err := p.o.Store.enable(ctx, p.o.Name); err != nil {
			p.o.Log.Warn("cannot enable a sink whose configuration changed; trying again soon", "error", err)
			return
		}
		s = state{}
		p.o.Log.Info("sink enabled again, since its configuration changed")
	}
	p.set(s.disabled, s.reason)
}

func (p *Pipeline) set(disabled bool, reason string) {
	p.mu.Lock()
	before, known := p.disabled, p.known
	p.disabled, p.known = disabled, true
	if !known || before != disabled {
		close(p.changed)
		p.changed = make(chan struct{})
	}
	p.mu.Unlock()
	if before == disabled {
		return
	}
	p.o.Observer.Disabled(p.o.Name, disabled)
	if !disabled {
		p.o.Log.Info("sink enabled again")
		return
	}
	p.o.Log.Error("sink disabled: its receiver wants nothing more; its backlog is kept; to enable it, "+
		"change its configuration and restart, or delete its state key in Redis",
		"reason", reason, "key", p.o.Store.keys.SinkState(p.o.Name))
}

// disable is the consequence of a receiver that is gone. Where it cannot be stored the next attempt finds out again.
func (p *Pipeline) disable(ctx context.Context, cause error) {
	reason := clip(cause.Error(), keptError)
	p.set(true, reason)
	err := p.persist(ctx, func(ctx context.Context) error {
		return p.o.Store.disable(ctx, p.o.Name, reason, p.o.Fingerprint, p.o.Now())
	})
	if err != nil {
		p.o.Log.Warn("cannot store that the sink is disabled", "error", err)
	}
}
