package delivery

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// rateLimiter lets the attempts of a sink begin: at its rate, which all nodes share through Redis, and not while the destination
// has asked for a rest. Fresh deliveries wait in line. Retries are claimed only for attempts that the gate has set aside
// for them, so that a claim never waits; while both want to begin, they do so by turns.
//
// One goroutine asks Redis, while somebody waits, for as many as wait and never for more. While Redis cannot be reached
// nobody passes. Where Redis answers and refuses to write (it is full, it is a replica), one attempt passes in each
// interval of the rate on this node, since only deliveries make room.
//
// Without a rate it costs nothing, asks nobody, and a rest is this node's alone.
type rateLimiter struct {
	store.RateLimit
	store         *store.Rates
	rateName      func() string             // of the rate
	extraRequests relay.ExtraRequestCounter // nil for a sink that asks once for each attempt
	now           func() time.Time
	// onTokens is called without a lock when attempts were set aside for retries.
	onTokens func()
	// onThrottle is called without a lock when a rest begins or ends.
	onThrottle func(bool)

	throttledUntil atomic.Int64 // end of the rest in unix nanoseconds, as far as this node knows

	mu             sync.Mutex
	waiters        []chan struct{} // fresh deliveries
	retryDemand    int             // by retries
	retryTokens    int             // set aside for retries
	retryNext      bool            // the next that both want goes to a retry
	surplus        int             // granted, and wanted by nobody any more
	refillDone     chan struct{}   // closed when the goroutine that asks has ended; nil while there is none
	wake           chan struct{}   // for that goroutine
	closed         bool
	nextFallbackAt time.Time   // when the next may begin while Redis refuses to count
	throttleCount  int         // 429 in a row
	throttleTimer  *time.Timer // of the end of the rest
}

func newRateLimiter(rates *store.Rates, o *Options) *rateLimiter {
	name := func() string { return o.Name }
	if keyer, ok := o.Sink.(relay.RateKeyer); ok {
		name = keyer.RateKey
	}
	spender, _ := o.Sink.(relay.ExtraRequestCounter)
	return &rateLimiter{
		RateLimit: newRateLimit(o.Rate, o.Burst), store: rates, rateName: name, extraRequests: spender, now: o.Now,
		onTokens: func() {}, onThrottle: func(bool) {}, wake: make(chan struct{}, 1),
	}
}

func (g *rateLimiter) hasRate() bool { return g.Rate.Limited() }

// wait waits until an attempt may begin and reports true, until stop is closed, or returns the error of ctx. An attempt
// that does not begin after all is followed by back.
func (g *rateLimiter) wait(ctx context.Context, stop <-chan struct{}) (bool, error) {
	if !g.hasRate() {
		return g.waitThrottle(ctx, stop)
	}
	ticket := make(chan struct{})
	g.mu.Lock()
	g.waiters = append(g.waiters, ticket)
	g.startRefill()
	g.mu.Unlock()
	var err error
	select {
	case <-ticket:
		return true, nil
	case <-stop:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if !g.removeWaiter(ticket) {
		g.returnTokens(1) // it was given in the same moment
	}
	return false, err
}

// tryAcquire asks whether an attempt may begin now, without waiting: not while others wait. Where none may it returns how long
// that takes at least. Where Redis refuses to count it waits as take does.
func (g *rateLimiter) tryAcquire(ctx context.Context, stop <-chan struct{}) (bool, time.Duration, error) {
	if wait := g.throttleRemaining(); wait > 0 || !g.hasRate() {
		return wait == 0, wait, nil
	}
	g.mu.Lock()
	waiting := len(g.waiters)+g.retryDemand > 0
	g.mu.Unlock()
	if waiting {
		return false, 0, nil
	}
	asking, cancel := context.WithTimeout(ctx, store.CommandTimeout)
	defer cancel()
	granted, err := g.store.Take(asking, g.rateName(), g.RateLimit, 1)
	var refused redis.Error
	switch {
	case errors.As(err, &refused):
		ok, err := g.wait(ctx, stop)
		return ok, 0, err
	case err != nil:
		return false, 0, err
	case granted.Cooldown:
		g.setThrottle(granted.RetryIn)
	}
	return granted.Tokens == 1, granted.RetryIn, nil
}

// waitThrottle waits for the end of the rest.
func (g *rateLimiter) waitThrottle(ctx context.Context, stop <-chan struct{}) (bool, error) {
	for {
		wait := g.throttleRemaining()
		if wait <= 0 {
			return true, nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-stop:
			timer.Stop()
			return false, nil
		case <-ctx.Done():
			timer.Stop()
			return false, ctx.Err()
		}
	}
}

// removeWaiter reports whether ticket still stood in line.
func (g *rateLimiter) removeWaiter(ticket chan struct{}) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, other := range g.waiters {
		if other == ticket {
			g.waiters = append(g.waiters[:i:i], g.waiters[i+1:]...)
			g.wakeRefill()
			return true
		}
	}
	return false
}

// available tells how many of n retries may begin, and where none may, in how long it is worth asking again; zero is when
// want has been answered.
func (g *rateLimiter) available(n int) (most int, wait time.Duration) {
	if wait := g.throttleRemaining(); wait > 0 && !g.hasRate() {
		return 0, wait
	}
	if !g.hasRate() {
		return n, 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return min(n, g.retryTokens), 0
}

// requestTokens asks for ready to be called when a retry may begin.
func (g *rateLimiter) requestTokens() {
	g.mu.Lock()
	now := g.retryTokens > 0
	if !now && g.hasRate() {
		g.retryDemand = g.tokensPerRequest()
		g.startRefill()
	}
	g.mu.Unlock()
	if now {
		g.onTokens()
	}
}

// consumeRetryTokens says that n of what was set aside for retries belong to retries that were claimed.
func (g *rateLimiter) consumeRetryTokens(n int) {
	g.mu.Lock()
	g.retryTokens = max(0, g.retryTokens-n)
	g.mu.Unlock()
}

// lacksRetryTokens tells whether retries have nothing set aside.
func (g *rateLimiter) lacksRetryTokens() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hasRate() && g.retryTokens == 0
}

// releaseRetryTokens gives back what was set aside for retries, of which none is due.
func (g *rateLimiter) releaseRetryTokens() {
	if !g.hasRate() {
		return
	}
	g.mu.Lock()
	n := g.retryTokens
	g.retryTokens, g.retryDemand = 0, 0
	g.wakeRefill()
	g.mu.Unlock()
	g.returnTokens(n)
}

// returnTokens says that n attempts did not begin after all.
func (g *rateLimiter) returnTokens(n int) {
	if n > 0 && g.hasRate() {
		g.grant(n)
	}
}

// grant lets n attempts begin. During a rest none does, and Redis keeps no account of what came before it.
func (g *rateLimiter) grant(n int) {
	if g.throttleRemaining() > 0 {
		return
	}
	g.mu.Lock()
	notify := false
	for range n {
		switch {
		case g.retryDemand > 0 && (g.retryNext || len(g.waiters) == 0):
			g.retryDemand--
			g.retryTokens++
			g.retryNext, notify = false, true
		case len(g.waiters) > 0:
			close(g.waiters[0])
			g.waiters = g.waiters[1:]
			g.retryNext = true
		default:
			g.surplus++
			g.startRefill() // gives it back to Redis
		}
	}
	g.mu.Unlock()
	if notify {
		g.onTokens()
	}
}

// chargeExtraRequests counts the requests that the sink has made besides one for each attempt. Where Redis does not answer they are not
// counted: the destination says so itself where they were too many.
func (g *rateLimiter) chargeExtraRequests(ctx context.Context) {
	if g.extraRequests == nil || !g.hasRate() {
		return
	}
	if n := g.extraRequests.TakeExtraRequests(); n > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.CommandTimeout)
		defer cancel()
		_ = g.store.Charge(ctx, g.rateName(), g.RateLimit, n)
	}
}

// newRateLimit uses as a burst of 0 what the rate allows in a second, at least one.
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

// tokensPerRequest is a tenth of a second's worth, so little is granted to a node that could start on another.
func (g *rateLimiter) tokensPerRequest() int { return max(1, min(perSecond(g.Rate)/10, g.Burst)) }
