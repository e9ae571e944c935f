package backbone

import (
	"context"
	"errors"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// ErrLeaseLost is the cause of the end of a context that a lease protected.
var ErrLeaseLost = errors.New("the lease was lost")

// Lease is a lock with a time to live: at most one process holds a name, as long as clocks run at the same speed. It
// only saves work. What must not happen twice is safe without it, since a process may be paused beyond any lease.
type Lease struct {
	b    *Store
	key  string
	name string
	ttl  time.Duration
}

// Lease returns the lease of that name, not yet taken. A node that dies frees it after ttl, at least 100 ms.
func (b *Store) Lease(name string, ttl time.Duration) *Lease {
	return &Lease{b: b, key: b.keys.Lease(name), name: name, ttl: max(ttl, 100*time.Millisecond)}
}

// Run waits for the lease and runs fn while holding it, again and again until ctx ends; then it returns ctx's error.
// The context of fn ends before another process can hold the lease, with the cause [ErrLeaseLost]. When fn returns, the
// lease is given back; its error is logged, and the next try waits a moment.
func (l *Lease) Run(ctx context.Context, fn func(context.Context) error) error {
	return l.RunHeld(ctx, func(work, _ context.Context) error { return fn(work) })
}

// RunHeld is Run for work that takes a while to end: the lease is kept until fn has returned. work ends with ctx or with
// the lease, held with the lease alone.
func (l *Lease) RunHeld(ctx context.Context, fn func(work, held context.Context) error) error {
	value := l.b.bootID + randomHex()
	another := l.ttl / 3 // until it is worth asking again where another process holds it
	soon := another / 16 // until it is after something failed, longer each time
	failed := soon
	for ctx.Err() == nil {
		start := time.Now()
		held, err := l.acquire(ctx, value)
		if err != nil && ctx.Err() == nil {
			l.b.log.WarnContext(ctx, "cannot take a lease", "lease", l.name, "error", err)
		}
		if held {
			err = l.runWithLease(ctx, value, start, fn)
			if err != nil && ctx.Err() == nil {
				l.b.log.ErrorContext(ctx, "work under a lease ended", "lease", l.name, "error", err)
			}
		}
		if err == nil || time.Since(start) > another {
			failed = soon
		}
		wait := another
		if err != nil {
			wait = failed
			failed = min(2*failed, another)
		}
		relay.Sleep(ctx, jittered(wait))
	}
	return ctx.Err()
}

// runWithLease runs fn until it returns. since is when the lease was asked for, from which its time counts at the latest.
func (l *Lease) runWithLease(ctx context.Context, value string, since time.Time, fn func(work, held context.Context) error) error {
	work, stop := context.WithCancelCause(ctx)
	held, lose := context.WithCancelCause(context.WithoutCancel(ctx))
	end := func(cause error) {
		stop(cause)
		lose(cause)
	}
	done := make(chan struct{})
	defer func() {
		end(nil)
		<-done
		l.release(ctx, value)
	}()
	go func() {
		defer close(done)
		l.renewLoop(held, value, since, end)
	}()
	return fn(work, held)
}

// renewLoop renews the lease every third of its time, more often where that fails, and ends the work when it might expire before
// the work could stop.
func (l *Lease) renewLoop(ctx context.Context, value string, since time.Time, lose context.CancelCauseFunc) {
	// A tenth is left for the work to notice.
	usable := l.ttl - l.ttl/10
	for wait := l.renewInterval(nil); ; {
		if !relay.Sleep(ctx, min(wait, max(time.Until(since.Add(usable)), 0))) {
			return
		}
		left := time.Until(since.Add(usable))
		if left <= 0 {
			lose(ErrLeaseLost)
			return
		}
		asked := time.Now()
		held, err := l.renew(ctx, value, left)
		wait = l.renewInterval(err)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			l.b.log.WarnContext(ctx, "cannot renew a lease", "lease", l.name, "error", err)
		case !held:
			lose(ErrLeaseLost)
			return
		default:
			since = asked
		}
	}
}

// renewInterval is when a lease is renewed again, which ended with err the last time.
func (l *Lease) renewInterval(err error) time.Duration {
	if err != nil {
		return l.ttl / 10
	}
	return l.ttl / 3
}

// renew keeps a lease that is ours still, and gives up after limit: the client's own time-outs are longer than a lease may be.
func (l *Lease) renew(ctx context.Context, value string, limit time.Duration) (bool, error) {
	type answer struct {
		held bool
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		held, err := l.tryHold(ctx, value, false)
		answers <- answer{held, err}
	}()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case a := <-answers:
		return a.held, a.err
	case <-ctx.Done():
		return false, ctx.Err()
	case <-t.C:
		return false, context.DeadlineExceeded
	}
}

// acquire gets the lease where it is free or ours.
func (l *Lease) acquire(ctx context.Context, value string) (bool, error) {
	return l.tryHold(ctx, value, true)
}

// tryHold renews the lease and tells whether it is ours. Only with take may it have been free.
func (l *Lease) tryHold(ctx context.Context, value string, take bool) (bool, error) {
	sole := ""
	if l.b.exclusive {
		sole = l.b.bootID
	}
	n, err := leaseTakeScript.Run(ctx, l.b.client, []string{l.key}, value, l.ttl.Milliseconds(), sole, boolArg(take)).Int()
	return n == 1, wrapError("take lease "+l.name, err)
}

func (l *Lease) release(ctx context.Context, value string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := leaseDropScript.Run(ctx, l.b.client, []string{l.key}, value).Err(); err != nil {
		l.b.log.WarnContext(ctx, "cannot give a lease back, it will expire", "lease", l.name, "error", err)
	}
}
