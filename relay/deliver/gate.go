package deliver

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
)

// gate lets the attempts of a sink begin: at its rate, which all nodes share through Redis, and not while the destination
// has asked for a rest. Fresh deliveries wait in line. Retries are claimed only for attempts that the gate has set aside
// for them, so that a claim never waits; while both want to begin, they do so by turns.
//
// One goroutine asks Redis, while somebody waits, for as many as wait and never for more. While Redis cannot be reached
// nobody passes. Where Redis answers and refuses to write (it is full, it is a replica), one attempt passes in each
// interval of the rate on this node, since only deliveries make room.
//
// Without a rate it costs nothing, asks nobody, and a rest is this node's alone.
type gate struct {
	pace
	store   *Store
	name    func() string // of the rate
	spender relay.Spender // nil for a sink that asks once for each attempt
	now     func() time.Time
	// ready is called without a lock when attempts were set aside for retries.
	ready func()
	// resting is called without a lock when a rest begins or ends.
	resting func(bool)

	until atomic.Int64 // end of the rest in unix nanoseconds, as far as this node knows

	mu       sync.Mutex
	line     []chan struct{} // fresh deliveries
	wanted   int             // by retries
	reserved int             // set aside for retries
	turn     bool            // the next that both want goes to a retry
	spare    int             // granted, and wanted by nobody any more
	asker    chan struct{}   // closed when the goroutine that asks has ended; nil while there is none
	wake     chan struct{}   // for that goroutine
	closed   bool
	paced    time.Time   // when the next may begin while Redis refuses to count
	refusals int         // 429 in a row
	timer    *time.Timer // of the end of the rest
}

func newGate(store *Store, o *Options) *gate {
	name := func() string { return o.Name }
	if keyer, ok := o.Sink.(relay.RateKeyer); ok {
		name = keyer.RateKey
	}
	spender, _ := o.Sink.(relay.Spender)
	return &gate{
		pace: newPace(o.Rate, o.Burst), store: store, name: name, spender: spender, now: o.Now,
		ready: func() {}, resting: func(bool) {}, wake: make(chan struct{}, 1),
	}
}

func (g *gate) limited() bool { return g.rate.Limited() }

// take waits until an attempt may begin and reports true, until stop is closed, or returns the error of ctx. An attempt
// that does not begin after all is followed by back.
func (g *gate) take(ctx context.Context, stop <-chan struct{}) (bool, error) {
	if !g.limited() {
		return g.sleep(ctx, stop)
	}
	ticket := make(chan struct{})
	g.mu.Lock()
	g.line = append(g.line, ticket)
	g.ask()
	g.mu.Unlock()
	var err error
	select {
	case <-ticket:
		return true, nil
	case <-stop:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if !g.leave(ticket) {
		g.back(1) // it was given in the same moment
	}
	return false, err
}

// once asks whether an attempt may begin now, without waiting: not while others wait. Where none may it returns how long
// that takes at least. Where Redis refuses to count it waits as take does.
func (g *gate) once(ctx context.Context, stop <-chan struct{}) (bool, time.Duration, error) {
	if wait := g.rests(); wait > 0 || !g.limited() {
		return wait == 0, wait, nil
	}
	g.mu.Lock()
	waiting := len(g.line)+g.wanted > 0
	g.mu.Unlock()
	if waiting {
		return false, 0, nil
	}
	asking, cancel := context.WithTimeout(ctx, lastChance)
	defer cancel()
	granted, err := g.store.begin(asking, g.name(), g.pace, 1)
	var refused redis.Error
	switch {
	case errors.As(err, &refused):
		ok, err := g.take(ctx, stop)
		return ok, 0, err
	case err != nil:
		return false, 0, err
	case granted.rest:
		g.note(granted.next)
	}
	return granted.n == 1, granted.next, nil
}

// sleep waits for the end of the rest.
func (g *gate) sleep(ctx context.Context, stop <-chan struct{}) (bool, error) {
	for {
		wait := g.rests()
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

// leave reports whether ticket still stood in line.
func (g *gate) leave(ticket chan struct{}) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, other := range g.line {
		if other == ticket {
			g.line = append(g.line[:i:i], g.line[i+1:]...)
			g.poke()
			return true
		}
	}
	return false
}

// room tells how many of n retries may begin, and where none may, in how long it is worth asking again; zero is when
// want has been answered.
func (g *gate) room(n int) (most int, wait time.Duration) {
	if wait := g.rests(); wait > 0 && !g.limited() {
		return 0, wait
	}
	if !g.limited() {
		return n, 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return min(n, g.reserved), 0
}

// want asks for ready to be called when a retry may begin.
func (g *gate) want() {
	g.mu.Lock()
	now := g.reserved > 0
	if !now && g.limited() {
		g.wanted = g.batch()
		g.ask()
	}
	g.mu.Unlock()
	if now {
		g.ready()
	}
}

// used says that n of what was set aside for retries belong to retries that were claimed.
func (g *gate) used(n int) {
	g.mu.Lock()
	g.reserved = max(0, g.reserved-n)
	g.mu.Unlock()
}

// short tells whether retries have nothing set aside.
func (g *gate) short() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limited() && g.reserved == 0
}

// forgo gives back what was set aside for retries, of which none is due.
func (g *gate) forgo() {
	if !g.limited() {
		return
	}
	g.mu.Lock()
	n := g.reserved
	g.reserved, g.wanted = 0, 0
	g.poke()
	g.mu.Unlock()
	g.back(n)
}

// back says that n attempts did not begin after all.
func (g *gate) back(n int) {
	if n > 0 && g.limited() {
		g.hand(n)
	}
}

// hand lets n attempts begin. During a rest none does, and Redis keeps no account of what came before it.
func (g *gate) hand(n int) {
	if g.rests() > 0 {
		return
	}
	g.mu.Lock()
	notify := false
	for range n {
		switch {
		case g.wanted > 0 && (g.turn || len(g.line) == 0):
			g.wanted--
			g.reserved++
			g.turn, notify = false, true
		case len(g.line) > 0:
			close(g.line[0])
			g.line = g.line[1:]
			g.turn = true
		default:
			g.spare++
			g.ask() // gives it back to Redis
		}
	}
	g.mu.Unlock()
	if notify {
		g.ready()
	}
}

// spent counts the requests that the sink has made besides one for each attempt. Where Redis does not answer they are not
// counted: the destination says so itself where they were too many.
func (g *gate) spent(ctx context.Context) {
	if g.spender == nil || !g.limited() {
		return
	}
	if n := g.spender.Spent(); n > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastChance)
		defer cancel()
		_ = g.store.spend(ctx, g.name(), g.pace, n)
	}
}

// passAtOnce is once, until the sink's state changes, the pipeline stops or ctx ends.
func (p *Pipeline) passAtOnce(ctx context.Context) (ok bool, wait time.Duration, err error) {
	p.mu.Lock()
	changed := p.changed
	p.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.stopping, cancel)()
	return p.gate.once(ctx, changed)
}

// pass waits for the gate until the sink's state changes, which it reports as false, the pipeline stops or ctx ends.
func (p *Pipeline) pass(ctx context.Context, changed <-chan struct{}) (bool, error) {
	if !p.gate.limited() && p.gate.rests() == 0 {
		return true, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.stopping, cancel)()
	return p.gate.take(ctx, changed)
}
