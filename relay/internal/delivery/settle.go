package delivery

import (
	"context"

	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// completeClaim removes a claimed delivery that was delivered.
func (p *Pipeline) completeClaim(ctx context.Context, c store.Claim) {
	var next bool
	err := retryWrite(ctx, func(ctx context.Context) (err error) {
		next, err = p.opts.Store.Retries.Complete(ctx, c)
		return err
	})
	if err != nil {
		p.logUnsettled(c, err)
		return
	}
	p.retryLimit.decrement()
	if next {
		p.onRetryScheduled(0)
	}
}

// releaseClaim makes a claimed delivery due at once, for another node or a later day.
func (p *Pipeline) releaseClaim(ctx context.Context, c store.Claim, body string) {
	p.settleClaim(ctx, c, func(ctx context.Context) (bool, error) { return p.opts.Store.Retries.Reschedule(ctx, c, body, 0) })
}

// settleClaim reports whether the claim was still held and is settled now.
func (p *Pipeline) settleClaim(ctx context.Context, c store.Claim, write func(context.Context) (bool, error)) bool {
	var held bool
	err := retryWrite(ctx, func(ctx context.Context) error {
		var err error
		held, err = write(ctx)
		return err
	})
	if err != nil {
		p.logUnsettled(c, err)
		return false
	}
	if !held {
		p.opts.Log.Warn("a claim on a parked delivery had ended before its attempt was settled", "id", c.ID)
	}
	return held
}

func (p *Pipeline) logUnsettled(c store.Claim, err error) {
	p.opts.Log.Warn("an attempt could not be settled; it will be made again", "id", c.ID, "error", err)
}
