// Package quota limits how many notifications and bytes a key, an account and an address may publish per second, and
// how many other requests a key and an account may send. All nodes share one token bucket per limit in Redis.
//
// A node leases tokens for a tenth of a second at once and spends them without Redis, so most requests need no round
// trip. Leased tokens are taken from the bucket first, so all nodes together never exceed a limit. A node returns no
// tokens: what it does not spend within a second is lost.
//
// Publications through the inbox have no quota, because a client that can write to Redis does not need the API.
package quota

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// leaseTime is how long leased tokens may be spent.
	leaseTime = time.Second
	// maxBuckets is the number of buckets above which unused ones are removed. Clients can create one per address.
	maxBuckets = 10_000
)

// Limiter applies one limit to many buckets, such as all keys. It may be used concurrently.
type Limiter struct {
	limit Limit
	store Store
	now   func() time.Time

	mu      sync.Mutex
	buckets map[string]*bucket
}

// NewLimiter returns a limiter with its tokens in store.
func NewLimiter(l Limit, s Store) *Limiter {
	return &Limiter{limit: l, store: s, now: time.Now, buckets: make(map[string]*bucket)}
}

// Take takes tokens from the bucket with this name. If they are not available, it takes none and returns the time until
// they are. An error means that the store did not respond or that ctx has ended.
func (l *Limiter) Take(ctx context.Context, name string, a Amount) (retryIn time.Duration, err error) {
	a = l.limit.masked(a)
	if a == (Amount{}) {
		return 0, nil
	}
	b := l.bucket(name)
	if b.spend(a, l.now()) {
		return 0, nil
	}
	// One request leases for all that wait. If the store fails, it fails for all, so they do not wait for one timeout after
	// another.
	waitingSince := l.now()
	select {
	case b.leasing <- struct{}{}:
		defer func() { <-b.leasing }()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	for !b.spend(a, l.now()) {
		if b.failedAt.After(waitingSince) {
			return 0, b.lastErr
		}
		need, want := b.missing(a, l.limit.leaseSize(), l.now())
		lease, err := l.store.Lease(ctx, name, l.limit, need, want)
		if err != nil && !errors.Is(ctx.Err(), context.Canceled) { // otherwise the client has left
			b.failedAt, b.lastErr = l.now(), err
		}
		if err != nil || lease.RetryIn > 0 {
			return lease.RetryIn, err
		}
		b.add(lease.Granted, l.now())
	}
	return 0, nil
}

// giveBack returns tokens of a request that another limit has rejected. They can be spent until the lease ends.
func (l *Limiter) giveBack(name string, a Amount) {
	b := l.bucket(name)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.available = b.available.plus(l.limit.masked(a))
}

func (l *Limiter) bucket(name string) *bucket {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.buckets[name]
	if b == nil {
		if len(l.buckets) >= maxBuckets {
			l.removeUnused()
		}
		b = &bucket{leasing: make(chan struct{}, 1)}
		l.buckets[name] = b
	}
	return b
}

// removeUnused removes buckets whose lease has ended. If all are in use, it removes all: their tokens are lost, and the
// next requests lease again.
func (l *Limiter) removeUnused() {
	now := l.now()
	for name, b := range l.buckets {
		if b.isExpired(now) {
			delete(l.buckets, name)
		}
	}
	if len(l.buckets) >= maxBuckets {
		clear(l.buckets)
	}
}

// bucket contains the leased tokens of this node.
type bucket struct {
	leasing chan struct{} // held by the request that leases
	// failedAt is the time of the last error of the store, lastErr. Both belong to the holder of leasing.
	failedAt time.Time
	lastErr  error

	mu        sync.Mutex
	available Amount
	expiresAt time.Time
}

// spend takes tokens of the lease, all or none.
func (b *bucket) spend(a Amount, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !now.Before(b.expiresAt) || a.Count > b.available.Count || a.Bytes > b.available.Bytes {
		return false
	}
	b.available = b.available.minus(a)
	return true
}

// missing returns the tokens that a request of a needs in addition to the available ones, and how many to ask for, so
// that a lease of this size is available afterwards.
func (b *bucket) missing(a, size Amount, now time.Time) (need, want Amount) {
	b.mu.Lock()
	defer b.mu.Unlock()
	available := b.available
	if !now.Before(b.expiresAt) {
		available = Amount{}
	}
	need = Amount{max(0, a.Count-available.Count), max(0, a.Bytes-available.Bytes)}
	want = Amount{
		max(need.Count, size.Count-available.Count),
		max(need.Bytes, size.Bytes-available.Bytes),
	}
	return need, want
}

// add adds the tokens of a new lease.
func (b *bucket) add(a Amount, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Before(b.expiresAt) {
		a = a.plus(b.available)
	}
	b.available, b.expiresAt = a, now.Add(leaseTime)
}

func (b *bucket) isExpired(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !now.Before(b.expiresAt)
}
