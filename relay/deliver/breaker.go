package deliver

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	breakAfter  = 10 // failures in a row
	pauseFirst  = time.Second
	pauseMost   = time.Minute
	pauseGrowth = 2
)

// breaker holds a sink's deliveries back while its destination is down, for this node. While it is open they stay where
// they are, in the queue in its order or in the delay queue, and use up neither a slot nor an attempt nor memory of
// Redis; parking them would cost a write each and turn their order around. One at a time is tried as a probe, after
// pauses that grow.
type breaker struct {
	now func() time.Time
	// changed is called without a lock when there may be room after wait: a probe, or everything.
	changed func(wait time.Duration)
	// turned is called without a lock when it opens or closes.
	turned func(open bool, cause error)
	first  time.Duration

	mu       sync.Mutex
	failures int // in a row
	open     bool
	probing  bool
	pause    time.Duration
	until    time.Time     // when the next probe may begin
	waiters  chan struct{} // closed and replaced at every change
}

func newBreaker(now func() time.Time) *breaker {
	return &breaker{
		now: now, first: pauseFirst, waiters: make(chan struct{}),
		changed: func(time.Duration) {}, turned: func(bool, error) {},
	}
}

// enter tells whether an attempt may begin, and whether it is the probe. Each that may is followed by leave.
func (b *breaker) enter() (probe, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open {
		return false, true
	}
	if b.probing || b.now().Before(b.until) {
		return false, false
	}
	b.probing = true
	return true, true
}

// room tells how many attempts may begin, at most n, and where none may, in how long it is worth asking again; zero is
// when changed says so.
func (b *breaker) room(n int) (most int, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !b.open:
		return n, 0
	case b.probing:
		return 0, 0
	}
	if wait := b.until.Sub(b.now()); wait > 0 {
		return 0, wait
	}
	return min(n, 1), 0
}

// wait returns when enter may succeed, when stop is closed, or with the error of ctx.
func (b *breaker) wait(ctx context.Context, stop <-chan struct{}) error {
	for {
		b.mu.Lock()
		open, probing, wait, waiters := b.open, b.probing, b.until.Sub(b.now()), b.waiters
		b.mu.Unlock()
		if !open || !probing && wait <= 0 {
			return nil
		}
		if probing {
			wait = pauseMost // waiters is closed when the probe ends
		}
		timer := time.NewTimer(wait)
		select {
		case <-waiters:
		case <-timer.C:
		case <-stop:
			timer.Stop()
			return nil
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
	}
}

// leave says how an attempt ended: counts is false for one that was broken off and says nothing.
func (b *breaker) leave(probe, counts bool, err error) {
	down := counts && isDown(err)
	b.mu.Lock()
	was := b.open
	if probe {
		b.probing = false
	}
	switch {
	case !counts:
	case !down:
		b.failures, b.open, b.pause = 0, false, 0
	case probe && b.open:
		b.pause = min(b.pause*pauseGrowth, pauseMost)
		b.until = b.now().Add(b.pause)
	default:
		b.failures++
		if !b.open && b.failures >= breakAfter {
			b.open, b.pause = true, b.first
			b.until = b.now().Add(b.pause)
		}
	}
	open, wait := b.open, max(0, b.until.Sub(b.now()))
	tell := probe || was != open
	if tell {
		close(b.waiters)
		b.waiters = make(chan struct{})
	}
	b.mu.Unlock()
	if was != open {
		b.turned(open, err)
	}
	if !open {
		wait = 0
	}
	if tell {
		b.changed(wait)
	}
}

// next is when the next probe may begin, zero while the breaker is closed.
func (b *breaker) next() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open {
		return time.Time{}
	}
	return b.until
}

// hurry lets the next probe begin at once, and the pauses grow from the first again.
func (b *breaker) hurry() {
	b.mu.Lock()
	if !b.open {
		b.mu.Unlock()
		return
	}
	b.pause, b.until = b.first, b.now()
	close(b.waiters)
	b.waiters = make(chan struct{})
	probing := b.probing
	b.mu.Unlock()
	if !probing {
		b.changed(0)
	}
}

// isDown tells whether an attempt's error says something about the destination as a whole: that it cannot be reached,
// does not answer in time, is broken or overloaded. Any other answer shows that it is there.
func isDown(err error) bool {
	if outcome, _ := relay.Classify(err); outcome != relay.OutcomeRetry {
		return false
	}
	var answer *relay.AnswerError
	if !errors.As(err, &answer) {
		return true
	}
	return answer.Status == 0 || answer.Status == http.StatusTooManyRequests || answer.Status >= http.StatusInternalServerError
}

// enter waits for room in the delay queue, for the breaker, for the gate and for a slot. It holds a slot where there is no
// error. granted says that the gate was passed already.
func (p *Pipeline) enter(ctx context.Context, granted bool) (probe bool, err error) {
	for ; ; granted = false {
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		if err := p.held(ctx, changed); err != nil {
			if granted {
				p.gate.back(1)
			}
			return false, err
		}
		if !granted {
			if ok, err := p.pass(ctx, changed); err != nil {
				return false, err
			} else if !ok {
				continue
			}
		}
		if err := p.slots.acquire(ctx); err != nil {
			p.gate.back(1)
			return false, err
		}
		off, known := p.isDisabled()
		if (!off || !known) && p.gate.rests() == 0 && !p.capacity.full() {
			if probe, ok := p.breaker.enter(); ok {
				return probe, nil
			}
		}
		p.slots.release(1)
		p.gate.back(1)
		if off && known {
			return false, ErrDisabled
		}
	}
}

// held waits for room and for the breaker until the sink's state changes, the pipeline stops or ctx ends.
func (p *Pipeline) held(ctx context.Context, changed <-chan struct{}) error {
	if off, known := p.isDisabled(); off && known {
		return ErrDisabled
	}
	if most, _ := p.breaker.room(1); most > 0 && !p.capacity.full() {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.stopping, cancel)()
	if err := p.capacity.wait(ctx, changed); err != nil {
		return err
	}
	return p.breaker.wait(ctx, changed)
}

func (p *Pipeline) turned(open bool, cause error) {
	p.o.Observer.Broken(p.o.Name, open)
	if open {
		p.o.Log.Warn("the sink's destination is down; its deliveries wait and one at a time is tried",
			"failures", breakAfter, "error", cause)
		return
	}
	p.o.Log.Info("the sink's destination answers again; its deliveries go on")
}
