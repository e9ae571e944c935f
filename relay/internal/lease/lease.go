// Package lease provides locks with an expiry in Redis, which distribute work to nodes, and the numbers of nodes.
//
// A lease only avoids double work. Everything that must not happen twice needs its own protection in Redis, because a
// process may be paused for longer than any lease.
package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/internal/backoff"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

const (
	minTTL         = 100 * time.Millisecond
	releaseTimeout = time.Second
)

// ErrLost is the cause of a context that ended because its lease was lost.
var ErrLost = errors.New("the lease was lost")

// Lease is a lock with an expiry. At most one process holds a name, provided that all clocks run at the same speed.
type Lease struct {
	m    *Manager
	key  string
	name string
	ttl  time.Duration
}

// DefaultTTL is the time after which another node takes over the work of a failed node.
const DefaultTTL = 10 * time.Second

// Lease returns the lease of a name without acquiring it. If its holder dies, it is free after ttl, which is at least 100 ms. All
// nodes must use the same ttl for a name.
func (m *Manager) Lease(name string, ttl time.Duration) *Lease {
	return &Lease{m: m, key: Key(m.keys, name), name: name, ttl: max(ttl, minTTL)}
}

// Run waits for the lease and runs fn while it holds the lease. It repeats that until ctx ends, and returns ctx's
// error. The context of fn ends with the cause [ErrLost] before another process can hold the lease. When fn returns,
// Run releases the lease, logs the error of fn, and waits before the next attempt.
func (l *Lease) Run(ctx context.Context, fn func(context.Context) error) error {
	return l.RunHeld(ctx, func(work, _ context.Context) error { return fn(work) })
}

// RunHeld is Run for work that needs time to stop. It holds the lease until fn has returned. work ends with ctx or the
// lease, held ends only with the lease.
func (l *Lease) RunHeld(ctx context.Context, fn func(work, held context.Context) error) error {
	value := l.m.newValue()
	// interval is the time between two attempts while another process holds the lease.
	interval := l.ttl / 3
	retry := backoff.Backoff{Min: interval / 16, Max: interval}
	for ctx.Err() == nil {
		start := time.Now()
		held, err := l.tryAcquire(ctx, value)
		if err != nil && ctx.Err() == nil {
			l.m.log.WarnContext(ctx, "acquiring a lease failed", "lease", l.name, "error", err)
		}
		if held {
			err = l.runWithLease(ctx, value, start, fn)
			if err != nil && ctx.Err() == nil {
				l.m.log.ErrorContext(ctx, "work under a lease failed", "lease", l.name, "error", err)
			}
		}
		if err == nil || time.Since(start) > interval {
			retry.Reset()
		}
		wait := backoff.Jitter(interval)
		if err != nil {
			wait = retry.Next()
		}
		await.Duration(ctx, wait)
	}
	return ctx.Err()
}

// runWithLease runs fn until it returns. The lease expires no earlier than its ttl after acquiredAt.
func (l *Lease) runWithLease(
	ctx context.Context, value string, acquiredAt time.Time, fn func(work, held context.Context) error,
) error {
	work, cancelWork := context.WithCancelCause(ctx)
	held, cancelHeld := context.WithCancelCause(context.WithoutCancel(ctx))
	cancel := func(cause error) {
		cancelWork(cause)
		cancelHeld(cause)
	}
	done := make(chan struct{})
	defer func() {
		cancel(nil)
		<-done
		l.releaseLock(ctx, value)
	}()
	go func() {
		defer close(done)
		l.renewLoop(held, value, acquiredAt, cancel)
	}()
	return fn(work, held)
}

// renewLoop renews the lease regularly. If that fails, it cancels the work early enough to stop before the lease
// expires.
func (l *Lease) renewLoop(ctx context.Context, value string, renewedAt time.Time, cancel context.CancelCauseFunc) {
	usable := l.ttl - l.ttl/10 // the rest is for the work to stop
	for wait := l.renewInterval(nil); ; {
		if !await.Duration(ctx, min(wait, max(time.Until(renewedAt.Add(usable)), 0))) {
			return
		}
		left := time.Until(renewedAt.Add(usable))
		if left <= 0 {
			cancel(ErrLost)
			return
		}
		start := time.Now()
		held, err := l.renewWithin(ctx, value, left)
		wait = l.renewInterval(err)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			l.m.log.WarnContext(ctx, "renewing a lease failed", "lease", l.name, "error", err)
		case !held:
			cancel(ErrLost)
			return
		default:
			renewedAt = start
		}
	}
}

// renewInterval returns the time until the next renewal, given the error of the last one.
func (l *Lease) renewInterval(err error) time.Duration {
	if err != nil {
		return l.ttl / 10
	}
	return l.ttl / 3
}

// renewWithin extends a lease that this process still holds. The timeouts of the client are longer than a lease, so
// renewWithin returns after limit at the latest.
func (l *Lease) renewWithin(ctx context.Context, value string, limit time.Duration) (bool, error) {
	type result struct {
		held bool
		err  error
	}
	results := make(chan result, 1)
	go func() {
		held, err := l.tryHold(ctx, value, false)
		results <- result{held, err}
	}()
	limited, cancel := context.WithTimeoutCause(ctx, limit, errNoRenewal)
	defer cancel()
	r, err := await.Value(limited, results)
	if err != nil {
		return false, err
	}
	return r.held, r.err
}

var errNoRenewal = fmt.Errorf("redis did not renew the lease in time: %w", context.DeadlineExceeded)

// tryAcquire takes the lease if it is free, and renews it if this process holds it.
func (l *Lease) tryAcquire(ctx context.Context, value string) (bool, error) {
	return l.tryHold(ctx, value, true)
}

// tryHold renews the lease and reports whether this process holds it. It takes a free lease only if canTake is set.
func (l *Lease) tryHold(ctx context.Context, value string, canTake bool) (bool, error) {
	ownPrefix := ""
	if l.m.singleProcess {
		ownPrefix = l.m.bootID
	}
	take := "0"
	if canTake {
		take = "1"
	}
	args := []any{value, l.ttl.Milliseconds(), ownPrefix, take}
	n, err := acquireScript.Run(ctx, l.m.client, []string{l.key}, args...).Int()
	return n == 1, redisconn.WrapError("acquire lease "+l.name, err)
}

func (l *Lease) releaseLock(ctx context.Context, value string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := releaseScript.Run(ctx, l.m.client, []string{l.key}, value).Err(); err != nil {
		l.m.log.WarnContext(ctx, "releasing a lease failed, it expires later", "lease", l.name,
			"error", redisconn.WrapError("release lease "+l.name, err))
	}
}
