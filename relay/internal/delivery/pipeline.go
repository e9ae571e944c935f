package delivery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// ErrDisabled is returned for a delivery that stays where it is, because its sink is disabled or paused.
var ErrDisabled = errors.New("the sink is disabled or paused and keeps its backlog")

// Pipeline takes the deliveries of one sink through attempt, retry and dead letter. Handle may be called concurrently.
// It starts no goroutine of its own; [RetryScheduler] makes it try again what it parked.
type Pipeline struct {
	opts              Options
	concurrency       *concurrencyLimiter
	attempts          *attemptRunner
	warnings          logLimiter
	retryLimit        *retryQueueLimit
	queueFullLog      logLimiter
	droppedLog        droppedLetterLog
	stats             statsBuffer
	deadLetterNotices deadLetterCoalescer
	failing           failureTracker
	breaker           *breaker
	rateLimiter       *rateLimiter
	batcher           *batchBuilder
	order             *orderingState  // nil where there is none
	stopping          context.Context // ends when nothing more is to be begun
	stop              context.CancelFunc
	onRetryScheduled  func(wait time.Duration) // set by Retries

	mu              sync.Mutex
	state           store.State   // empty before it was read
	stateChanged    chan struct{} // closed and replaced when the state changes
	pendingDisables int           // how many are storing that the sink is disabled
	stateVersion    int           // counts what makes a state that was asked for before out of date
	closed          bool
}

// New returns the pipeline of one sink. It talks to nobody yet.
func New(o Options) (*Pipeline, error) {
	if o.Name == "" || o.Sink == nil || o.Store == nil {
		return nil, errors.New("a delivery pipeline needs a name, a sink and a store")
	}
	o.setDefaults()
	p := &Pipeline{opts: o, concurrency: newConcurrencyLimiter(o.Concurrency), stateChanged: make(chan struct{}), onRetryScheduled: func(time.Duration) {}}
	p.stopping, p.stop = context.WithCancel(context.Background())
	p.breaker = newBreaker(o.Now)
	p.retryLimit = newRetryQueueLimit(o.Backlog)
	p.batcher = &batchBuilder{max: o.Batch.Max}
	p.order = newOrder(o.Ordering)
	p.breaker.onStateChange = p.onBreakerChange
	p.opts.Observer.CircuitChanged(o.Name, false)
	p.rateLimiter = newRateLimiter(o.Store, &p.opts)
	p.rateLimiter.onThrottle = p.onThrottleChange
	p.opts.Observer.Throttled(o.Name, false)
	p.attempts = &attemptRunner{
		sink: o.Sink, timeout: o.Timeout, timeoutErr: attemptTimeoutError(o.Timeout), maxAbandoned: int64(o.Concurrency),
		onPanic: func(value any, stack []byte) {
			o.Log.Error("a sink panicked", "type", fmt.Sprintf("%T", value), "stack", string(stack))
		},
	}
	p.warnings = logLimiter{now: o.Now, interval: time.Second, maxLines: linesPerSecond}
	p.queueFullLog = logLimiter{now: o.Now, interval: warnInterval, maxLines: 1}
	p.droppedLog.logLimiter = logLimiter{now: o.Now, interval: warnInterval, maxLines: 1}
	return p, nil
}

// Name is the sink's name.
func (p *Pipeline) Name() string { return p.opts.Name }

// Handle makes the first attempt of a fresh delivery, or gathers it. Nil means that nothing of d is left to do where it came
// from: it was delivered, gathered, sealed in a batch, parked or is a dead letter. After an error d must come again. Handle blocks while all slots are taken,
// while the destination is down or rests, while the rate allows no more, while the delay queue is full and while Redis takes
// no parked delivery; the end of ctx ends all of it.
func (p *Pipeline) Handle(ctx context.Context, d relay.Delivery) error {
	if p.order != nil {
		return p.handleOrdered(ctx, d)
	}
	if p.usesBatches() {
		return p.handleBatched(ctx, d)
	}
	granted := false
	if p.usesDigests() {
		var done bool
		var err error
		if done, granted, err = p.addToDigest(ctx, d); done || err != nil {
			return err
		}
	}
	return p.handle(ctx, d, granted)
}

// handle attempts d. granted says that the gate was passed already.
func (p *Pipeline) handle(ctx context.Context, d relay.Delivery, granted bool) error {
	probe, err := p.admit(ctx, granted)
	if err != nil {
		return err
	}
	d.Attempt = 1
	made, err := p.runAttempt(ctx, d, probe)
	p.concurrency.release(1)
	if err == nil {
		p.trackOutcome(ctx, relay.OutcomeDelivered, nil)
		return nil
	}
	return p.handleFailure(ctx, d, made, err)
}

// handleFailure draws the consequence of a first attempt.
func (p *Pipeline) handleFailure(ctx context.Context, d relay.Delivery, made attemptTiming, err error) error {
	outcome, named := relay.Classify(err)
	switch {
	case outcome == relay.OutcomeGone:
		p.disable(ctx, err)
		return ErrDisabled
	case outcome == relay.OutcomeRetry && ctx.Err() != nil:
		return ctx.Err() // our end, not the sink's failure
	case p.trackOutcome(ctx, outcome, err):
		return ErrDisabled
	}
	r := store.NewRecord(d, made.startedAt)
	r.AddAttempt(store.NewAttempt(made.startedAt, made.duration, err))
	wait, more := p.opts.Schedule.Next(1, 0, named, p.opts.Random())
	if outcome == relay.OutcomeRetry && more {
		return p.scheduleRetry(ctx, d.ID, r, wait, err)
	}
	return p.deadLetter(ctx, d.ID, r, outcome, err)
}

// attemptTiming says when an attempt was made.
type attemptTiming struct {
	startedAt time.Time
	duration  time.Duration
}

func (p *Pipeline) runAttempt(ctx context.Context, d relay.Delivery, probe bool) (made attemptTiming, err error) {
	d = p.formatForSink(d)
	made.startedAt = p.opts.Now()
	err = p.attempts.runAttempt(ctx, d)
	made.duration = p.opts.Now().Sub(made.startedAt)
	outcome, _ := relay.Classify(err)
	counts := outcome != relay.OutcomeRetry || ctx.Err() == nil
	if counts {
		p.opts.Observer.Attempted(p.opts.Name, d.Attempt, outcome, made.duration)
		if err != nil {
			p.opts.Observer.Failed(p.opts.Name, FailureReason(err))
		}
		p.stats.recordAttempt(d.Attempt, attemptFailure{err, made.startedAt.Add(made.duration)})
	}
	p.rateLimiter.chargeExtraRequests(ctx)
	p.rateLimiter.observeResponse(ctx, counts, err)
	p.breaker.record(probe, counts, err)
	return made, err
}

func (p *Pipeline) scheduleRetry(ctx context.Context, id string, r *store.Record, wait time.Duration, cause error) error {
	body, err := r.Encode()
	if err != nil {
		return err
	}
	var parked int64
	key := p.orderingKey(r)
	err = retryWrite(ctx, func(ctx context.Context) error {
		parked, err = p.opts.Store.Retries.Schedule(
			ctx, p.opts.Name, store.Scheduled{ID: id, Body: body, OrderingKey: key}, wait, r.ArrivedAt(p.opts.Now()))
		return err
	})
	if key != "" {
		p.order.blockKey(key) // after an error too: Redis may have done it
	}
	if err != nil {
		return err
	}
	p.updateRetryCount(parked)
	p.onScheduled(id, r, wait, cause)
	return nil
}

func (p *Pipeline) onScheduled(id string, r *store.Record, wait time.Duration, cause error) {
	p.opts.Observer.RetryScheduled(p.opts.Name)
	p.onRetryScheduled(wait)
	if dropped, ok := p.warnings.allowLine(); ok {
		p.opts.Log.Warn("delivery failed and will be tried again", "id", id, "topic", r.Notifications[0].Topic,
			"attempt", r.AttemptCount, "error", cause, "due", p.opts.Now().Add(wait).UTC().Round(time.Second), "lines_left_out", dropped)
	}
}

func (p *Pipeline) deadLetter(ctx context.Context, id string, r *store.Record, outcome relay.Outcome, cause error) error {
	entry, err := store.NewDeadLetter(id, r, failureText(outcome, cause), p.orderingKey(r), p.opts.Now())
	if err != nil {
		return err
	}
	var gone int64
	err = retryWrite(ctx, func(ctx context.Context) error {
		gone, _, err = p.opts.Store.DeadLetters.Add(ctx, store.Claim{Sink: p.opts.Name, ID: id}, p.opts.Backlog, entry)
		return err
	})
	if err != nil {
		return err
	}
	p.onDeadLettersDropped(gone)
	p.onDeadLettered(ctx, id, r, outcome, cause)
	return nil
}

func deadLetterReason(outcome relay.Outcome) string {
	if outcome == relay.OutcomePermanent {
		return ReasonPermanent
	}
	return ReasonExhausted
}

func failureText(outcome relay.Outcome, cause error) string {
	return store.Truncate(deadLetterReason(outcome)+": "+cause.Error(), store.MaxErrorBytes)
}

func (p *Pipeline) onDeadLettered(ctx context.Context, id string, r *store.Record, outcome relay.Outcome, cause error) {
	reason := deadLetterReason(outcome)
	p.opts.Observer.DeadLettered(p.opts.Name, reason)
	if dropped, ok := p.warnings.allowLine(); ok {
		p.opts.Log.Warn("delivery became a dead letter", "id", id, "topic", r.Notifications[0].Topic, "attempt", r.AttemptCount,
			"reason", reason, "error", cause, "lines_left_out", dropped)
	}
	p.noteDeadLetter(ctx, id, reason, r, cause)
}

const (
	writeRetryTimeout = 30 * time.Second
	minWriteRetryWait = 100 * time.Millisecond
	maxWriteRetryWait = 2 * time.Second
	redisTimeout      = 2 * time.Second
)

// retryWrite repeats a write to Redis, since giving the delivery back instead would send it to its receiver again. It
// tries at least once even when ctx has ended: the attempt was made and its outcome should not get lost.
func retryWrite(ctx context.Context, write func(context.Context) error) error {
	deadline := time.NewTimer(writeRetryTimeout)
	defer deadline.Stop()
	for wait := minWriteRetryWait; ; wait = min(2*wait, maxWriteRetryWait) {
		err := func() error {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), redisTimeout)
			defer cancel()
			return write(ctx)
		}()
		if err == nil {
			return nil
		}
		pause := time.NewTimer(wait)
		select {
		case <-pause.C:
			continue
		case <-deadline.C:
		case <-ctx.Done():
		}
		pause.Stop()
		return err
	}
}

// Stop has nothing more begun: what waits for a slot, for the rate or for the destination returns ErrDisabled or its
// context's error. Attempts go on.
func (p *Pipeline) Stop() { p.stop() }

// Close closes the sink once every attempt has returned or ctx has ended; in the latter case it leaves the sink open,
// says so, and may be called again. It may be called twice.
func (p *Pipeline) Close(ctx context.Context) error {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	p.mu.Unlock()
	if !first {
		return nil
	}
	p.stop()
	p.rateLimiter.close()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for p.attempts.running.Load() > 0 {
		select {
		case <-ctx.Done():
			n := p.attempts.running.Load()
			if n == 0 {
				continue // the last has returned meanwhile
			}
			p.mu.Lock()
			p.closed = false
			p.mu.Unlock()
			return fmt.Errorf("close sink %s: %d attempts have not returned", p.opts.Name, n)
		case <-tick.C:
		}
	}
	p.attempts.workers.close()
	if err := p.opts.Sink.Close(); err != nil {
		return fmt.Errorf("close sink %s: %w", p.opts.Name, err)
	}
	return nil
}

// logLimiter lets through a bounded number of log lines in a span of time and counts the others.
type logLimiter struct {
	now      func() time.Time
	interval time.Duration
	maxLines int

	mu          sync.Mutex
	windowStart time.Time
	lines       int
	dropped     int
}

const linesPerSecond = 20

func (l *logLimiter) allowLine() (dropped int, ok bool) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lines == 0 || now.Sub(l.windowStart).Abs() >= l.interval {
		l.windowStart, l.lines = now, 0
	}
	if l.lines >= l.maxLines {
		l.dropped++
		return 0, false
	}
	l.lines++
	dropped, l.dropped = l.dropped, 0
	return dropped, true
}
