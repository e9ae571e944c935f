package admission

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/backoff"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

const (
	// maxRefillWait limits the wait between two requests to Redis, so a rate that was deleted there starts again.
	maxRefillWait = time.Minute
	// minRefillDelay and maxRefillDelay limit the delay after Redis did not respond.
	minRefillDelay = 100 * time.Millisecond
	maxRefillDelay = 2 * time.Second
)

// RateStore counts the attempts of all nodes. [store.Rates] implements it.
type RateStore interface {
	Take(ctx context.Context, name string, l store.RateLimit, n int) (store.Grant, error)
	Return(ctx context.Context, name string, l store.RateLimit, n int) error
	Charge(ctx context.Context, name string, l store.RateLimit, n int) error
	Cooldown(ctx context.Context, name string, l store.RateLimit, wait time.Duration) error
	EndCooldown(ctx context.Context, name string, l store.RateLimit) error
}

var _ RateStore = (*store.Rates)(nil)

// tokenBucket limits the rate of attempts, which all nodes share through Redis, and stops them during a cooldown. Its
// units are tokens.
//
// While a token is wanted, one goroutine requests as many from Redis as are wanted, and never more. While Redis is
// unreachable, no attempt starts. If Redis responds but rejects writes, because it is full or a replica, one attempt
// per interval of the rate starts on this node, because only deliveries free memory. Without a rate there is no
// goroutine, and other nodes follow a cooldown with their next poll.
type tokenBucket struct {
	limit    store.RateLimit
	store    RateStore
	name     func() string
	now      func() time.Time
	cooldown *cooldown
	// wake is called without the lock when tokens were reserved for retries.
	wake func()

	mu       sync.Mutex
	queue    fairQueue
	spare    int           // tokens to return to Redis
	refilled chan struct{} // closed when the refill goroutine has ended; nil without one
	changed  chan struct{} // wakes that goroutine
	closed   bool
	// nextFallbackAt is the earliest time of the next attempt while Redis rejects writes.
	nextFallbackAt time.Time
}

// newRateLimit returns a limit. The default burst is the rate of one second, at least one.
func newRateLimit(rate relay.Rate, burst int) store.RateLimit {
	if burst <= 0 {
		burst = max(1, perSecond(rate))
	}
	return store.RateLimit{Rate: rate, Burst: burst}
}

func perSecond(rate relay.Rate) int {
	if !rate.Limited() {
		return 0
	}
	return int(time.Duration(rate.Count) * time.Second / rate.Per)
}

// tokensPerRequest is the rate of a tenth of a second, so a node gets few tokens that another could use.
func tokensPerRequest(l store.RateLimit) int { return max(1, min(perSecond(l.Rate)/10, l.Burst)) }

func (b *tokenBucket) hasRate() bool { return b.limit.Limited() }

// acquireToken waits for a token and returns true. It returns false when stop is closed, and the error of ctx when that
// ends.
func (b *tokenBucket) acquireToken(ctx context.Context, stop <-chan struct{}) (bool, error) {
	if !b.hasRate() {
		return b.cooldown.wait(ctx, stop)
	}
	b.mu.Lock()
	ticket := b.queue.addTicket()
	b.startRefill()
	b.mu.Unlock()
	var err error
	select {
	case <-ticket:
		return true, nil
	case <-stop:
	case <-ctx.Done():
		err = ctx.Err()
	}
	b.mu.Lock()
	removed := b.queue.removeTicket(ticket)
	b.mu.Unlock()
	if !removed {
		b.releaseTokens(1)
	}
	b.notifyRefill()
	return false, err
}

// tryAcquire takes a token if one is available and no attempt waits for one. Otherwise it returns the minimum time
// until one is available. If Redis rejects writes, it waits as acquireToken does.
func (b *tokenBucket) tryAcquire(ctx context.Context, stop <-chan struct{}) (bool, time.Duration, error) {
	if wait := b.cooldown.remaining(); wait > 0 || !b.hasRate() {
		return wait == 0, wait, nil
	}
	b.mu.Lock()
	isWanted := b.queue.isWanted()
	b.mu.Unlock()
	if isWanted {
		return false, 0, nil
	}
	grant, err := b.requestTokens(ctx, 1)
	var rejected redis.Error
	switch {
	case errors.As(err, &rejected):
		ok, err := b.acquireToken(ctx, stop)
		return ok, 0, err
	case err != nil:
		return false, 0, err
	}
	return grant.Tokens == 1, grant.RetryIn, nil
}

// requestTokens requests tokens from Redis, and follows a cooldown that another node has started.
func (b *tokenBucket) requestTokens(ctx context.Context, n int) (store.Grant, error) {
	ctx, cancel := context.WithTimeout(ctx, store.CommandTimeout)
	defer cancel()
	ended := b.cooldown.endedChan()
	grant, err := b.store.Take(ctx, b.name(), b.limit, n)
	if err != nil || !grant.Cooldown {
		return grant, err
	}
	select {
	case <-ended: // the reply may be older than the end
	default:
		b.startCooldown(grant.RetryIn)
	}
	return grant, nil
}

// maxAttempts returns how many of n retries may start. If none may, it returns the time until that may change, or 0 if
// wake is called then.
func (b *tokenBucket) maxAttempts(n int) (int, time.Duration) {
	if !b.hasRate() {
		if wait := b.cooldown.remaining(); wait > 0 {
			return 0, wait
		}
		return n, 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return min(n, b.queue.reserved), 0
}

// wakeWhenAvailable calls wake when a token is reserved for a retry.
func (b *tokenBucket) wakeWhenAvailable() {
	b.mu.Lock()
	isAvailable := b.queue.reserved > 0
	if !isAvailable && b.hasRate() {
		b.queue.wanted = tokensPerRequest(b.limit)
		b.startRefill()
	}
	b.mu.Unlock()
	if isAvailable {
		b.wake()
	}
}

// takeReserved takes n reserved tokens for retries that were claimed.
func (b *tokenBucket) takeReserved(n int) {
	b.mu.Lock()
	b.queue.takeReserved(n)
	b.mu.Unlock()
}

// lacksReserved reports whether there is a rate and no token is reserved.
func (b *tokenBucket) lacksReserved() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hasRate() && b.queue.reserved == 0
}

// releaseReserved returns the reserved tokens, because no retry is due.
func (b *tokenBucket) releaseReserved() {
	if !b.hasRate() {
		return
	}
	b.mu.Lock()
	n := b.queue.clearReserved()
	b.mu.Unlock()
	b.notifyRefill()
	b.releaseTokens(n)
}

// releaseTokens returns n tokens of attempts that did not start. It does nothing during a cooldown, because Redis
// discards earlier tokens then.
func (b *tokenBucket) releaseTokens(n int) {
	if n == 0 || !b.hasRate() || b.cooldown.remaining() > 0 {
		return
	}
	b.mu.Lock()
	spare, wake := b.queue.grantUnits(n, math.MaxInt)
	if b.spare += spare; spare > 0 {
		b.startRefill() // returns them to Redis
	}
	b.mu.Unlock()
	if wake {
		b.wake()
	}
}

// startCooldown reports whether the cooldown ends later than the current one.
func (b *tokenBucket) startCooldown(wait time.Duration) bool {
	if !b.cooldown.extendBy(wait) {
		return false
	}
	b.mu.Lock()
	b.queue.reserved = 0
	b.mu.Unlock()
	return true
}

// endCooldown ends the cooldown on this node, so the destination gets attempts at once.
func (b *tokenBucket) endCooldown() {
	if b.cooldown.endEarly() {
		b.wake()
	}
}

// observeResponse starts a cooldown if the destination asked for one. counts is false for an attempt that was aborted.
func (b *tokenBucket) observeResponse(ctx context.Context, counts bool, err error) {
	wait := b.cooldown.observeResponse(counts, err)
	if wait <= 0 || !b.startCooldown(wait) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.CommandTimeout)
	defer cancel()
	// If Redis is unreachable, only this node keeps the cooldown.
	_ = b.store.Cooldown(ctx, b.name(), b.limit, wait)
	b.startCooldown(wait) // the one in Redis has started later and must not count as a second one
}

// chargeRequests counts requests in addition to attempts. If Redis does not respond, they are not counted.
func (b *tokenBucket) chargeRequests(ctx context.Context, n int) {
	if n == 0 || !b.hasRate() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.CommandTimeout)
	defer cancel()
	_ = b.store.Charge(ctx, b.name(), b.limit, n)
}

// startRefill starts the refill goroutine unless it runs. The caller holds the lock.
func (b *tokenBucket) startRefill() {
	if b.refilled == nil && !b.closed {
		b.refilled = make(chan struct{})
		go b.refillLoop(b.refilled)
	}
}

// notifyRefill makes the refill goroutine check again what is wanted.
func (b *tokenBucket) notifyRefill() {
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// nextRefill returns the number of wanted tokens and of those to return. If both are zero, the goroutine must end.
func (b *tokenBucket) nextRefill() (wanted, spare int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		wanted = len(b.queue.tickets) + b.queue.wanted
	}
	spare, b.spare = b.spare, 0
	if wanted+spare == 0 {
		b.refilled = nil
	}
	return wanted, spare
}

// refillLoop runs while tokens are wanted. Only one runs at a time.
func (b *tokenBucket) refillLoop(done chan struct{}) {
	defer close(done)
	retry := backoff.Backoff{Min: minRefillDelay, Max: maxRefillDelay}
	for {
		wanted, spare := b.nextRefill()
		switch {
		case wanted > 0 && spare > 0:
			b.releaseTokens(spare)
		case wanted > 0:
			if b.refillOnce(min(wanted, tokensPerRequest(b.limit))) {
				retry.Reset()
				continue
			}
			b.sleepWhileWanted(retry.Next(), nil)
		case spare > 0:
			ctx, cancel := context.WithTimeout(context.Background(), store.CommandTimeout)
			// Lost tokens only delay the sink for a short time.
			_ = b.store.Return(ctx, b.name(), b.limit, spare)
			cancel()
		default:
			return
		}
	}
}

// refillOnce requests n tokens and waits for the tokens that Redis does not grant yet. It returns false if Redis did
// not respond.
func (b *tokenBucket) refillOnce(n int) bool {
	ended := b.cooldown.endedChan()
	if wait := b.cooldown.remaining(); wait > 0 {
		b.sleepWhileWanted(wait, ended)
		return true
	}
	grant, err := b.requestTokens(context.Background(), n)
	var rejected redis.Error
	switch {
	case errors.As(err, &rejected):
		b.grantFallback()
		return true
	case err != nil:
		return false
	case grant.Cooldown:
		return true
	}
	b.releaseTokens(grant.Tokens)
	if missing := n - grant.Tokens; missing > 0 {
		// Wait for several tokens together, but never until the burst is complete, which would lose tokens.
		more := min(missing, max(1, b.limit.Burst/2)) - 1
		b.sleepWhileWanted(grant.RetryIn+time.Duration(more)*b.limit.Interval(), ended)
	}
	return true
}

// grantFallback grants one token per interval without Redis.
func (b *tokenBucket) grantFallback() {
	now := b.now()
	if wait := b.nextFallbackAt.Sub(now); wait > 0 {
		b.sleepWhileWanted(wait, nil)
		return
	}
	b.nextFallbackAt = now.Add(b.limit.Interval())
	b.releaseTokens(1)
}

// sleepWhileWanted returns early when no token is wanted, or when ended is closed.
func (b *tokenBucket) sleepWhileWanted(wait time.Duration, ended <-chan struct{}) {
	timer := time.NewTimer(min(wait, maxRefillWait))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return
		case <-ended:
			return
		case <-b.changed:
		}
		b.mu.Lock()
		isWanted := b.queue.isWanted() && !b.closed
		b.mu.Unlock()
		if !isWanted {
			return
		}
	}
}

// close returns reserved tokens and waits for the refill goroutine. No attempt with a rate starts after that.
func (b *tokenBucket) close() {
	b.mu.Lock()
	if b.spare += b.queue.clearReserved(); b.spare > 0 {
		b.startRefill() // returns them to Redis
	}
	b.closed = true
	done := b.refilled
	b.mu.Unlock()
	b.cooldown.close()
	b.notifyRefill()
	if done != nil {
		<-done
	}
}
