package pipeline

import (
	"context"
	"time"

	"github.com/hubrelay/hubrelay/internal/await"
)

// setConcurrency applies how many attempts the sink can make at once on this node.
func (p *Pipeline) setConcurrency(n int) {
	p.admission.SetConcurrency(n)
	p.state.setAvailable(n > 0)
}

// setAvailable records whether the sink can make attempts on this node. If it cannot for [unavailableAfter], the node takes no
// deliveries until it can. Other nodes then deliver what this node has read.
func (s *sinkState) setAvailable(available bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case available && s.outage != nil:
		s.outage.Stop()
		s.outage = nil
		s.setUnavailableLocked(false)
	case !available && s.outage == nil:
		var timer *time.Timer
		timer = time.AfterFunc(s.opts.unavailableAfter, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.outage == timer && s.stopping.Err() == nil {
				s.setUnavailableLocked(true)
			}
		})
		s.outage = timer
	}
}

// setUnavailableLocked is for a caller that holds mu.
func (s *sinkState) setUnavailableLocked(unavailable bool) {
	if s.unavailable == unavailable {
		return
	}
	s.unavailable = unavailable
	close(s.changed)
	s.changed = make(chan struct{})
	if unavailable {
		s.opts.Log.Warn("node cannot make attempts for the sink and leaves its deliveries to other nodes")
	} else {
		s.opts.Log.Info("node takes deliveries of the sink again")
	}
}

// WhileAvailable runs fn until ctx ends, and returns its error. While the sink can make no attempts on this node, the context of
// fn ends, and fn is called again afterward.
func (p *Pipeline) WhileAvailable(ctx context.Context, fn func(context.Context) error) error {
	for {
		if err := p.state.waitAvailable(ctx, true); err != nil {
			return err
		}
		work, cancel := context.WithCancel(ctx)
		go func() {
			defer cancel()
			_ = p.state.waitAvailable(work, false) // fails if work has ended
		}()
		err := fn(work)
		isOver := work.Err() == nil || ctx.Err() != nil
		cancel()
		if isOver {
			return err
		}
	}
}

// waitAvailable waits until the sink is available or unavailable on this node.
func (s *sinkState) waitAvailable(ctx context.Context, want bool) error {
	for {
		s.mu.Lock()
		isAvailable, changed := !s.unavailable, s.changed
		s.mu.Unlock()
		if isAvailable == want {
			return nil
		}
		if _, err := await.Value(ctx, changed); err != nil {
			return err
		}
	}
}
