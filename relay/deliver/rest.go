package deliver

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// longestRest bounds how long a destination may keep the whole sink waiting. One delivery it may put off longer.
	longestRest = time.Hour
	// restFirst and restMost bound the rests after a 429 that names no time; they double from one to the next.
	restFirst = time.Second
	restMost  = time.Minute
)

// rests returns how long the destination is to be left alone.
func (g *gate) rests() time.Duration {
	until := g.until.Load()
	if until == 0 {
		return 0
	}
	return max(0, time.Unix(0, until).Sub(g.now()))
}

// heard draws the conclusion from the answer to an attempt: a destination that says that it gets too much is left alone
// by the whole sink, for as long as it asked. counts is false for an attempt that was broken off and says nothing.
func (g *gate) heard(ctx context.Context, counts bool, err error) {
	if err == nil {
		g.mu.Lock()
		g.refusals = 0
		g.mu.Unlock()
		return
	}
	var answer *relay.AnswerError
	if !counts || !errors.As(err, &answer) {
		return
	}
	outcome, named := relay.Classify(err)
	if outcome != relay.OutcomeRetry {
		return
	}
	switch {
	case named > 0 && (answer.Status == http.StatusTooManyRequests || answer.Status == http.StatusServiceUnavailable):
		named = min(named, longestRest)
	case answer.Status == http.StatusTooManyRequests && g.rests() == 0:
		// What was under way when the rest began says nothing new.
		g.mu.Lock()
		named = min(restFirst<<min(g.refusals, 10), restMost)
		g.refusals++
		g.mu.Unlock()
	default:
		return
	}
	if !g.note(named) || !g.limited() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastChance)
	defer cancel()
	// Where Redis is away this node keeps the rest, and nobody passes anyway.
	_ = g.store.rest(ctx, g.name(), g.pace, named)
	g.note(named) // Redis' rest began later than ours: without this it would seem to begin twice
}

// note remembers a rest and reports whether it is longer than the one that is known.
func (g *gate) note(wait time.Duration) bool {
	until := g.now().Add(wait).UnixNano()
	g.mu.Lock()
	if until <= g.until.Load() || g.closed {
		g.mu.Unlock()
		return false
	}
	begins := g.rests() == 0
	g.until.Store(until)
	g.reserved = 0
	if g.timer != nil {
		g.timer.Stop()
	}
	g.timer = time.AfterFunc(wait, func() {
		if g.until.Load() == until {
			g.resting(false)
		}
	})
	g.mu.Unlock()
	if begins {
		g.resting(true)
	}
	return true
}

func (p *Pipeline) rests(begins bool) {
	p.o.Observer.Held(p.o.Name, begins)
	if begins {
		p.o.Log.Warn("the sink's destination gets too much and is left alone for a while",
			"until", p.o.Now().Add(p.gate.rests()).UTC().Round(time.Second))
	}
}
