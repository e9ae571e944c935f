package deliver

import (
	"context"

	"github.com/hubrelay/hubrelay/relay"
)

// Try makes one attempt with a notification that is stored nowhere, and says what came of it. It takes no slot, counts
// in no figure and changes no state, and works while the sink is paused or disabled.
func (p *Pipeline) Try(ctx context.Context, n relay.Notification) Attempt {
	start := p.o.Now()
	err := p.attempts.make(ctx, relay.Delivery{ID: n.ID, Attempt: 1, Notifications: []relay.Notification{n}})
	return newAttempt(start, p.o.Now().Sub(start), err)
}
