package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/internal/logsample"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/admission"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/attempt"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/notice"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/retry"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

const (
	maxLogLinesPerSecond = 20
	// warnInterval is the minimum time between two log records about the same state of a sink.
	warnInterval = time.Minute
	// claimMargin is the time by which a claim outlasts an attempt, to store its outcome.
	claimMargin = 8 * time.Second
	// closePollInterval is the time between checks whether all attempts have returned.
	closePollInterval = 5 * time.Millisecond
)

// Pipeline delivers to one sink. Fresh deliveries come from [Pipeline.Handle], and due retries from [Pipeline.Retry].
// Both pass the same chain of stages, see build. A Pipeline may be used concurrently.
// It starts goroutines only for attempts.
type Pipeline struct {
	opts        Options
	state       *sinkState
	admission   *admission.Admission
	runner      *attempt.Runner
	stats       *statsBuffer
	deadLetters *notice.DeadLetters
	queue       *queueOrigin
	claims      *claimOrigin
	failures    *failureTracker
	postponer   *postponer
	orders      *orderStage // nil for an unordered sink
	chain       Handler

	stopping context.Context // ends with Stop
	stop     context.CancelFunc
	polling  pollState // used by Poll and Apply only
	// measuredAt is the time of the last request for the memory of the scheduled deliveries. Poll uses it only.
	measuredAt time.Time
	// digestsShortened is set when open digests have no longer wait than that of this pipeline. An earlier configuration may have had
	// one. Apply uses it only.
	digestsShortened bool

	mu     sync.Mutex
	closed bool
}

var _ retry.Sink = (*Pipeline)(nil)

// New returns the pipeline of one sink. It does not use Redis yet.
func New(o Options) (*Pipeline, error) {
	if o.Name == "" || o.Sink == nil || o.Store == nil {
		return nil, errors.New("create pipeline: name, sink and store are required")
	}
	o.setDefaults()
	p := &Pipeline{opts: o, stats: &statsBuffer{}}
	p.stopping, p.stop = context.WithCancel(context.Background())
	p.state = newSinkState(p.stopping, &p.opts, p.resumeAttempts)
	p.deadLetters = notice.NewDeadLetters(o.Notices, o.Name, o.Now, o.Log)
	p.admission = admission.New(p.stopping, p.opts.forAdmission(p))
	p.runner = attempt.NewRunner(attempt.Options{
		Sink: o.Sink, Timeout: o.Timeout, MaxAbandoned: o.Concurrency,
		OnPanic: func(value any, stack []byte) {
			o.Log.Error("sink panicked", "panic_type", fmt.Sprintf("%T", value), "stack", string(stack))
		},
	})
	p.chain = p.build()
	if sink, ok := o.Sink.(relay.ConcurrencyReporter); ok {
		sink.ReportConcurrency(p.setConcurrency)
	}
	return p, nil
}

// build returns the stages that every delivery passes, outermost first: state, then order, digest or batch, then
// settle, admit and attempt.
func (p *Pipeline) build() Handler {
	o := &p.opts
	depth := newDepthTracker(o, p.admission, p.stats)
	out := &outcomes{opts: o, depth: depth, retries: &o.Store.Retries, deadLetters: &o.Store.DeadLetters}
	p.queue, p.claims = &queueOrigin{out}, &claimOrigin{out}
	p.failures = &failureTracker{opts: o, store: &o.Store.Failures}

	var h Handler = &attemptStage{opts: o, runner: p.runner, stats: p.stats, admission: p.admission}
	p.postponer = &postponer{opts: o, admission: p.admission, warnings: logsample.New(1, warnInterval, o.Now)}
	h = &admitStage{next: h, admission: p.admission, postponer: p.postponer}
	h = &settleStage{
		next: h, opts: o, state: p.state, deadLetters: p.deadLetters, failures: p.failures, postponer: p.postponer,
		warnings: logsample.New(maxLogLinesPerSecond, time.Second, o.Now),
	}
	switch {
	case o.isOrdered():
		p.orders = newOrderStage(h, o, p.admission, depth, p.postponer)
		h = p.orders
	case o.usesBatches():
		h = &batchStage{
			next: h, opts: o, admission: p.admission, depth: depth, origin: p.claims, stopping: p.stopping,
			store:     &o.Store.Batches,
			collector: batchCollector{max: o.Batch.Max, byAccount: o.Batch.ByAccount},
		}
	case o.usesDigests():
		h = &digestStage{next: h, opts: o, admission: p.admission, depth: depth, store: &o.Store.Digests}
	}
	return &stateStage{next: h, state: p.state}
}

// Handle makes the first attempt of a fresh delivery, or adds it to a digest or batch. On nil, nothing is left to do in
// the queue: it was delivered, added, scheduled for a retry, or is a dead letter. stored is false if it was delivered. After an
// error, d must be delivered again. Handle blocks while the concurrency limit or rate limit is reached, the destination fails or
// asked for a pause, the retry queue is full, or Redis is unreachable. The end of ctx ends all of these waits.
func (p *Pipeline) Handle(ctx context.Context, d relay.Delivery) (stored bool, err error) {
	d.Attempt = 1
	it := &Item{Delivery: d, Origin: p.queue}
	defer it.Permit.Cancel()
	err = p.chain.Handle(ctx, it)
	return err == nil && !it.IsDelivered, err
}

// Retry implements [retry.Sink]. It attempts a claimed delivery, for which Poll has reserved capacity.
func (p *Pipeline) Retry(ctx context.Context, c store.Claim) {
	p.postponer.forgetDelivery(c.ID)
	it := &Item{Origin: p.claims, Claim: &c, Permit: p.admission.ReservedPermit()}
	defer it.Permit.Cancel()
	var err error
	if it.Record, err = store.DecodeRecord(c.Body); err != nil {
		it.Permit.Cancel()
		p.deadLetterUnreadable(ctx, it, err)
		return
	}
	it.Delivery = it.Record.NextDelivery(c.ID)
	if p.opts.areErased(it.Delivery.Notifications) { // scheduled by a node that did not know about the erasure
		it.Permit.Cancel()
		_ = p.claims.Complete(ctx, it) // otherwise the claim expires
		return
	}
	releaseOnError(ctx, it, p.chain.Handle(ctx, it))
}

// DropOldestDeadLetters drops up to n dead letters because Redis is full, counts and logs them. It returns their number.
func (p *Pipeline) DropOldestDeadLetters(ctx context.Context, n int) (dropped int, err error) {
	result, err := p.opts.Store.DeadLetters.DropSelected(ctx, p.opts.Name, store.Selection{Limit: n})
	p.claims.depth.reportDropped(int64(result.Done), "memory of redis")
	return result.Done, err
}

// deadLetterUnreadable makes a dead letter of a claim whose record cannot be decoded.
func (p *Pipeline) deadLetterUnreadable(ctx context.Context, it *Item, cause error) {
	if p.claims.deadLetterUnreadable(ctx, it, cause) != nil {
		return
	}
	p.opts.Observer.DeadLettered(p.opts.Name, ReasonUnreadable)
	p.opts.Log.Error("scheduled delivery cannot be decoded and became a dead letter",
		"delivery_id", it.Claim.ID, "error", cause)
	r := &store.Record{Notifications: []store.Notification{{}}}
	p.deadLetters.Add(ctx, it.Claim.ID, ReasonUnreadable, r, cause)
}

// Name returns the name of the sink.
func (p *Pipeline) Name() string { return p.opts.Name }

// InFlight returns the number of running attempts on this node.
func (p *Pipeline) InFlight() int64 { return p.runner.Running() }

// Stop prevents new attempts. Deliveries that wait for one return an error. Running attempts continue.
func (p *Pipeline) Stop() { p.stop() }

// Close stops the pipeline, waits until all attempts have returned, and closes the sink. If ctx ends first, it leaves
// the sink open, returns an error, and may be called again. It may be called twice.
func (p *Pipeline) Close(ctx context.Context) error {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	p.mu.Unlock()
	if !first {
		return nil
	}
	p.stop()
	p.admission.Close()
	tick := time.NewTicker(closePollInterval)
	defer tick.Stop()
	for p.runner.Running() > 0 {
		select {
		case <-ctx.Done():
			n := p.runner.Running()
			if n == 0 {
				continue // the last one has just returned
			}
			p.mu.Lock()
			p.closed = false
			p.mu.Unlock()
			return fmt.Errorf("close sink %s: %d attempts have not returned", p.opts.Name, n)
		case <-tick.C:
		}
	}
	p.runner.Close()
	if err := p.opts.Sink.Close(); err != nil {
		return fmt.Errorf("close sink %s: %w", p.opts.Name, err)
	}
	return nil
}
