package deliver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// ErrDisabled is returned for a delivery that stays where it is, because its sink is disabled or paused.
var ErrDisabled = errors.New("the sink is disabled or paused and keeps its backlog")

// Pipeline takes the deliveries of one sink through attempt, retry and dead letter. Handle may be called concurrently.
// It starts no goroutine of its own; [Retries] makes it try again what it parked.
type Pipeline struct {
	o        Options
	slots    *slots
	attempts *attempts
	warnings limiter
	capacity *capacity
	filled   limiter
	gone     lettersDropped
	tally    tally
	deaths   deaths
	failing  failing
	breaker  *breaker
	gate     *gate
	batcher  *batcher
	order    *order          // nil where there is none
	stopping context.Context // ends when nothing more is to be begun
	stop     context.CancelFunc
	onPark   func(wait time.Duration) // set by Retries

	mu        sync.Mutex
	state     State         // empty before it was read
	changed   chan struct{} // closed and replaced when the state changes
	disabling int           // how many are storing that the sink is disabled
	epoch     int           // counts what makes a state that was asked for before out of date
	closed    bool
}

// New returns the pipeline of one sink. It talks to nobody yet.
func New(o Options) (*Pipeline, error) {
	if o.Name == "" || o.Sink == nil || o.Store == nil {
		return nil, errors.New("a delivery pipeline needs a name, a sink and a store")
	}
	o.setDefaults()
	p := &Pipeline{o: o, slots: newSlots(o.Concurrency), changed: make(chan struct{}), onPark: func(time.Duration) {}}
	p.stopping, p.stop = context.WithCancel(context.Background())
	p.breaker = newBreaker(o.Now)
	p.capacity = newCapacity(o.Backlog)
	p.batcher = &batcher{max: o.Batch.Max}
	p.order = newOrder(o.Ordering)
	o.Store.orders.Store(o.Name, o.Ordering)
	p.breaker.turned = p.turned
	p.o.Observer.Broken(o.Name, false)
	p.gate = newGate(o.Store, &p.o)
	p.gate.resting = p.rests
	p.o.Observer.Held(o.Name, false)
	p.attempts = &attempts{
		sink: o.Sink, timeout: o.Timeout, late: lateError(o.Timeout), most: int64(o.Concurrency),
		panics: func(value any, stack []byte) {
			o.Log.Error("a sink panicked", "type", fmt.Sprintf("%T", value), "stack", string(stack))
		},
	}
	p.warnings = limiter{now: o.Now, every: time.Second, most: linesPerSecond}
	p.filled = limiter{now: o.Now, every: seldom, most: 1}
	p.gone.limiter = limiter{now: o.Now, every: seldom, most: 1}
	return p, nil
}

// Name is the sink's name.
func (p *Pipeline) Name() string { return p.o.Name }

// Handle makes the first attempt of a fresh delivery, or gathers it. Nil means that nothing of d is left to do where it came
// from: it was delivered, gathered, sealed in a batch, parked or is a dead letter. After an error d must come again. Handle blocks while all slots are taken,
// while the destination is down or rests, while the rate allows no more, while the delay queue is full and while Redis takes
// no parked delivery; the end of ctx ends all of it.
func (p *Pipeline) Handle(ctx context.Context, d relay.Delivery) error {
	if p.order != nil {
		return p.handleInOrder(ctx, d)
	}
	if p.batches() {
		return p.handleInBatch(ctx, d)
	}
	granted := false
	if p.gathers() {
		var done bool
		var err error
		if done, granted, err = p.gather(ctx, d); done || err != nil {
			return err
		}
	}
	return p.handle(ctx, d, granted)
}

// handle attempts d. granted says that the gate was passed already.
func (p *Pipeline) handle(ctx context.Context, d relay.Delivery, granted bool) error {
	probe, err := p.enter(ctx, granted)
	if err != nil {
		return err
	}
	d.Attempt = 1
	made, err := p.attempt(ctx, d, probe)
	p.slots.release(1)
	if err == nil {
		p.judge(ctx, relay.OutcomeDelivered, nil)
		return nil
	}
	return p.failed(ctx, d, made, err)
}

// failed draws the consequence of a first attempt.
func (p *Pipeline) failed(ctx context.Context, d relay.Delivery, made timing, err error) error {
	outcome, named := relay.Classify(err)
	switch {
	case outcome == relay.OutcomeGone:
		p.disable(ctx, err)
		return ErrDisabled
	case outcome == relay.OutcomeRetry && ctx.Err() != nil:
		return ctx.Err() // our end, not the sink's failure
	case p.judge(ctx, outcome, err):
		return ErrDisabled
	}
	r := newRecord(d, made.began)
	r.add(newAttempt(made.began, made.took, err))
	wait, more := p.o.Schedule.Next(1, 0, named, p.o.Random())
	if outcome == relay.OutcomeRetry && more {
		return p.park(ctx, d.ID, r, wait, err)
	}
	return p.kill(ctx, d.ID, r, outcome, err)
}

// timing says when an attempt was made.
type timing struct {
	began time.Time
	took  time.Duration
}

func (p *Pipeline) attempt(ctx context.Context, d relay.Delivery, probe bool) (made timing, err error) {
	d = p.inForm(d)
	made.began = p.o.Now()
	err = p.attempts.make(ctx, d)
	made.took = p.o.Now().Sub(made.began)
	outcome, _ := relay.Classify(err)
	counts := outcome != relay.OutcomeRetry || ctx.Err() == nil
	if counts {
		p.o.Observer.Attempted(p.o.Name, d.Attempt, outcome, made.took)
		if err != nil {
			p.o.Observer.Failed(p.o.Name, FailureReason(err))
		}
		p.tally.count(d.Attempt, failure{err, made.began.Add(made.took)})
	}
	p.gate.spent(ctx)
	p.gate.heard(ctx, counts, err)
	p.breaker.leave(probe, counts, err)
	return made, err
}

func (p *Pipeline) park(ctx context.Context, id string, r *record, wait time.Duration, cause error) error {
	body, err := r.encode()
	if err != nil {
		return err
	}
	var parked int64
	key := p.keyOf(r)
	err = persist(ctx, func(ctx context.Context) error {
		parked, err = p.o.Store.park(ctx, p.o.Name, id, body, wait, r.came(p.o.Now()), key)
		return err
	})
	if key != "" {
		p.order.block(key) // after an error too: Redis may have done it
	}
	if err != nil {
		return err
	}
	p.heardParked(parked)
	p.parked(id, r, wait, cause)
	return nil
}

func (p *Pipeline) parked(id string, r *record, wait time.Duration, cause error) {
	p.o.Observer.Parked(p.o.Name)
	p.onPark(wait)
	if dropped, ok := p.warnings.allow(); ok {
		p.o.Log.Warn("delivery failed and will be tried again", "id", id, "topic", r.Notifications[0].Topic,
			"attempt", r.Made, "error", cause, "due", p.o.Now().Add(wait).UTC().Round(time.Second), "lines_left_out", dropped)
	}
}

func (p *Pipeline) kill(ctx context.Context, id string, r *record, outcome relay.Outcome, cause error) error {
	fields, err := r.deadLetter(id, why(outcome, cause), p.keyOf(r), p.o.Now())
	if err != nil {
		return err
	}
	var gone int64
	err = persist(ctx, func(ctx context.Context) error {
		gone, err = p.o.Store.addDead(ctx, p.o.Name, id, p.o.Backlog, fields)
		return err
	})
	if err != nil {
		return err
	}
	p.lettersGone(gone)
	p.killed(ctx, id, r, outcome, cause)
	return nil
}

func reasonOf(outcome relay.Outcome) string {
	if outcome == relay.OutcomePermanent {
		return ReasonPermanent
	}
	return ReasonExhausted
}

func why(outcome relay.Outcome, cause error) string {
	return clip(reasonOf(outcome)+": "+cause.Error(), keptError)
}

func (p *Pipeline) killed(ctx context.Context, id string, r *record, outcome relay.Outcome, cause error) {
	reason := reasonOf(outcome)
	p.o.Observer.DeadLettered(p.o.Name, reason)
	if dropped, ok := p.warnings.allow(); ok {
		p.o.Log.Warn("delivery became a dead letter", "id", id, "topic", r.Notifications[0].Topic, "attempt", r.Made,
			"reason", reason, "error", cause, "lines_left_out", dropped)
	}
	p.died(ctx, id, reason, r, cause)
}

const (
	persistFor   = 30 * time.Second
	persistFirst = 100 * time.Millisecond
	persistMost  = 2 * time.Second
	lastChance   = 2 * time.Second
)

// persist repeats a write to Redis, since giving the delivery back instead would send it to its receiver again. It
// tries at least once even when ctx has ended: the attempt was made and its outcome should not get lost.
func persist(ctx context.Context, write func(context.Context) error) error {
	deadline := time.NewTimer(persistFor)
	defer deadline.Stop()
	for wait := persistFirst; ; wait = min(2*wait, persistMost) {
		err := func() error {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastChance)
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
	p.gate.close()
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
			return fmt.Errorf("close sink %s: %d attempts have not returned", p.o.Name, n)
		case <-tick.C:
		}
	}
	p.attempts.callers.close()
	if err := p.o.Sink.Close(); err != nil {
		return fmt.Errorf("close sink %s: %w", p.o.Name, err)
	}
	return nil
}

// limiter lets through a bounded number of log lines in a span of time and counts the others.
type limiter struct {
	now   func() time.Time
	every time.Duration
	most  int

	mu      sync.Mutex
	began   time.Time
	lines   int
	dropped int
}

const linesPerSecond = 20

func (l *limiter) allow() (dropped int, ok bool) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lines == 0 || now.Sub(l.began).Abs() >= l.every {
		l.began, l.lines = now, 0
	}
	if l.lines >= l.most {
		l.dropped++
		return 0, false
	}
	l.lines++
	dropped, l.dropped = l.dropped, 0
	return dropped, true
}
