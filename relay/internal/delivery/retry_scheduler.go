package delivery

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

const (
	// idleCheckInterval is how often a sink is looked at without a hint: for what another node parked, and for its state.
	idleCheckInterval = 5 * time.Second
	// checkGranularity gathers idle looks, so that many sinks cost few wake-ups.
	checkGranularity = 250 * time.Millisecond
	// errorRetryInterval is the pause after Redis did not answer.
	errorRetryInterval = time.Second
	// changePollInterval is how often a node asks whether anybody paused, resumed or replayed something.
	changePollInterval = time.Second
	// claimMargin is what a claim lasts longer than an attempt may take, to settle it.
	claimMargin = 8 * time.Second
	// maxSinksPerPoll is how many sinks are asked about in one go.
	maxSinksPerPoll = 128
	pollTimeout     = 5 * time.Second
)

// RetryScheduler tries again what pipelines have parked: one goroutine for all sinks of a node, however many there are. Other
// nodes do the same; a delivery is claimed by one of them. A node that is killed gives up its claims by and by.
type RetryScheduler struct {
	o               RetrySchedulerOptions
	wake            chan struct{}
	lastChangeToken string // what Store.changes said last

	mu    sync.Mutex
	sinks map[string]*sinkSchedule
}

// sinkSchedule is what is known of one sink's delay queue.
type sinkSchedule struct {
	pipeline       *Pipeline
	active         sync.WaitGroup  // looks and retries; grows from zero only under the lock of Retries
	ctx            context.Context // ends with cut, and with it the retries
	cancel         context.CancelFunc
	nextCheck      time.Time // when the sink is to be looked at
	nextStateCheck time.Time // when its state is to be looked at
	hasDueTime     bool      // next is a due time, not an idle look
}

// RetrySchedulerOptions describe a [RetryScheduler].
type RetrySchedulerOptions struct {
	Store *store.Store
	// Grace is how long running attempts may go on after the context of Run has ended.
	Grace time.Duration
	// Log may be nil.
	Log *slog.Logger
}

// NewRetryScheduler returns a Retries without sinks.
func NewRetryScheduler(o RetrySchedulerOptions) *RetryScheduler {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &RetryScheduler{o: o, wake: make(chan struct{}, 1), sinks: make(map[string]*sinkSchedule)}
}

// Add makes r responsible for p, whose Handle must not have been called yet. A pipeline of the same name is replaced.
func (r *RetryScheduler) Add(p *Pipeline) {
	d := &sinkSchedule{pipeline: p, nextCheck: time.Now(), hasDueTime: true}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	p.onRetryScheduled = func(wait time.Duration) { r.scheduleCheck(d, wait) }
	p.concurrency.onSlots = func() { r.scheduleCheck(d, 0) }
	p.rateLimiter.onTokens = func() { r.scheduleCheck(d, 0) }
	p.breaker.onAvailable = func(wait time.Duration) { r.scheduleCheck(d, wait) }
	r.mu.Lock()
	r.sinks[p.Name()] = d
	r.mu.Unlock()
	r.wakeUp()
}

// CancelRetries ends the retries of p that run, which are given back, and begins no other.
func (r *RetryScheduler) CancelRetries(p *Pipeline) {
	r.mu.Lock()
	d := r.sinks[p.Name()]
	r.mu.Unlock()
	if d != nil && d.pipeline == p {
		p.Stop()
		d.cancel()
	}
}

// Remove lets go of p and returns when what it has claimed is settled and its figures are stored. When ctx ends, retries are
// cut. What is parked stays parked.
func (r *RetryScheduler) Remove(ctx context.Context, p *Pipeline) {
	r.mu.Lock()
	d := r.sinks[p.Name()]
	if d == nil || d.pipeline != p {
		r.mu.Unlock()
		return
	}
	delete(r.sinks, p.Name())
	r.mu.Unlock()
	p.Stop()
	stop := context.AfterFunc(ctx, d.cancel)
	d.active.Wait()
	stop()
	d.cancel()
	r.writeStats(context.WithoutCancel(ctx), []*Pipeline{p}, true)
}

func (r *RetryScheduler) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// scheduleCheck says that something of the sink is due after wait.
func (r *RetryScheduler) scheduleCheck(d *sinkSchedule, wait time.Duration) {
	at := time.Now().Add(wait)
	r.mu.Lock()
	sooner := at.Before(d.nextCheck) || !d.hasDueTime && !at.After(d.nextCheck)
	if sooner {
		d.nextCheck, d.hasDueTime = at, true
	}
	r.mu.Unlock()
	if sooner {
		r.wakeUp()
	}
}

// Run works until ctx ends and all claimed deliveries are settled or given back. It returns nil.
func (r *RetryScheduler) Run(ctx context.Context) error {
	// What waits for a destination that is down need not wait for the grace.
	defer context.AfterFunc(ctx, r.stopAll)()
	// Attempts outlive ctx by the grace, lest a receiver that has it already gets it again.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() {
		select {
		case <-time.After(r.o.Grace):
			stop()
		case <-work.Done():
		}
	})()
	var running sync.WaitGroup
	defer running.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	changes := time.NewTicker(changePollInterval)
	defer changes.Stop()
	for {
		timer.Reset(time.Until(r.nextCheckTime()))
		select {
		case <-ctx.Done():
			return nil
		case <-changes.C:
			r.watchChanges(ctx)
			r.flushStats(ctx, false)
		case <-timer.C:
		case <-r.wake:
		}
		if ctx.Err() != nil {
			return nil
		}
		r.pollDue(ctx, func(d *sinkSchedule, c store.Claim) {
			d.active.Add(1)
			running.Go(func() {
				defer d.active.Done()
				ctx, stop := context.WithCancel(work)
				defer stop()
				defer context.AfterFunc(d.ctx, stop)()
				d.pipeline.retryClaimed(ctx, c)
			})
		})
	}
}

func (r *RetryScheduler) stopAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.sinks {
		d.pipeline.stop()
	}
}

// watchChanges looks at all sinks where something was changed from outside. Where Redis does not answer, idle looks
// find the change later.
func (r *RetryScheduler) watchChanges(ctx context.Context) {
	if r.hasNoSinks() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	n, err := r.o.Store.States.Version(ctx)
	if err != nil || n == r.lastChangeToken {
		return
	}
	r.lastChangeToken = n
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.sinks {
		d.nextStateCheck, d.nextCheck = now, now
		d.pipeline.order.requestRefresh()
	}
}

func (r *RetryScheduler) hasNoSinks() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.sinks) == 0
}

func (r *RetryScheduler) nextCheckTime() time.Time {
	at := time.Now().Add(time.Minute)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.sinks {
		if d.nextCheck.Before(at) {
			at = d.nextCheck
		}
	}
	return at
}

// retryClaimed makes the next attempt of a claimed delivery and settles it. It holds a slot already.
func (p *Pipeline) retryClaimed(ctx context.Context, c store.Claim) {
	r, err := store.DecodeRecord(c.Body)
	if p.order != nil && err == nil {
		p.retryOrdered(ctx, c, r)
		return
	}
	if err == nil && (p.addScheduledToDigest(ctx, c, r) || p.batchScheduled(ctx, c, r)) {
		return
	}
	p.retryDecoded(ctx, c, r, err)
}

func (p *Pipeline) retryDecoded(ctx context.Context, c store.Claim, r *store.Record, err error) {
	off, _ := p.isDisabled()
	probe, ok := false, false
	if !off && err == nil && p.rateLimiter.throttleRemaining() == 0 {
		probe, ok = p.breaker.allow()
	}
	if !ok {
		p.concurrency.release(1)
		p.rateLimiter.returnTokens(1)
		if !off && err != nil {
			p.deadLetterUnreadable(ctx, c, err)
			return
		}
		p.releaseClaim(ctx, c, c.Body)
		return
	}
	p.attemptClaimed(ctx, c, r, r.NextDelivery(c.ID), probe)
}

// attemptClaimed attempts a claimed delivery, for which a slot is held, and settles it. d is r's next attempt.
func (p *Pipeline) attemptClaimed(ctx context.Context, c store.Claim, r *store.Record, d relay.Delivery, probe bool) {
	if r.First.IsZero() { // it was taken back from the dead letters or the log
		r.First = p.opts.Now().UTC().Round(time.Millisecond)
	}
	made, cause := p.runAttempt(ctx, d, probe)
	p.concurrency.release(1)
	outcome, named := relay.Classify(cause)
	if outcome == relay.OutcomeRetry && ctx.Err() != nil {
		p.releaseClaim(ctx, c, c.Body)
		return
	}
	if outcome == relay.OutcomeDelivered {
		p.failing.endFailures() // done tells Redis, whether this node knew of failures or not
		p.completeClaim(ctx, c)
		return
	}
	r.AddAttempt(store.NewAttempt(made.startedAt, made.duration, cause))
	if outcome == relay.OutcomeGone {
		p.disable(ctx, cause)
		p.releaseClaim(ctx, c, c.Body)
		return
	}
	if p.trackOutcome(ctx, outcome, cause) {
		p.releaseClaim(ctx, c, c.Body)
		return
	}
	wait, more := p.opts.Schedule.Next(r.AttemptCount, p.opts.Now().Sub(r.First), named, p.opts.Random())
	if outcome == relay.OutcomeRetry && more {
		p.reschedule(ctx, c, r, wait, cause)
		return
	}
	p.deadLetterClaimed(ctx, c, r, outcome, cause)
}

func (p *Pipeline) reschedule(ctx context.Context, c store.Claim, r *store.Record, wait time.Duration, cause error) {
	body, err := r.Encode()
	if err != nil {
		p.logUnsettled(c, err)
		return
	}
	if p.settleClaim(ctx, c, func(ctx context.Context) (bool, error) { return p.opts.Store.Retries.Reschedule(ctx, c, body, wait) }) {
		p.onScheduled(c.ID, r, wait, cause)
	}
}

func (p *Pipeline) deadLetterClaimed(ctx context.Context, c store.Claim, r *store.Record, outcome relay.Outcome, cause error) {
	entry, err := store.NewDeadLetter(c.ID, r, failureText(outcome, cause), p.orderingKey(r), p.opts.Now())
	if err != nil {
		p.logUnsettled(c, err)
		return
	}
	if p.writeDeadLetter(ctx, c, entry) {
		p.onDeadLettered(ctx, c.ID, r, outcome, cause)
	}
}

// deadLetterUnreadable makes a dead letter of a body that nobody can read, as it is.
func (p *Pipeline) deadLetterUnreadable(ctx context.Context, c store.Claim, cause error) {
	reason := store.Truncate(ReasonUnreadable+": "+cause.Error(), store.MaxErrorBytes)
	if p.writeDeadLetter(ctx, c, store.NewUnreadableDeadLetter(c, reason, p.opts.Now())) {
		p.opts.Observer.DeadLettered(p.opts.Name, ReasonUnreadable)
		p.opts.Log.Error("a parked delivery cannot be read and became a dead letter", "id", c.ID, "error", cause)
		p.noteDeadLetter(ctx, c.ID, ReasonUnreadable, &store.Record{Notifications: []store.Notification{{}}}, cause)
	}
}
