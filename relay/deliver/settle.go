package deliver

import "context"

// finish removes a claimed delivery that was delivered.
func (p *Pipeline) finish(ctx context.Context, c claim) {
	var next bool
	err := persist(ctx, func(ctx context.Context) (err error) {
		next, err = p.o.Store.done(ctx, c)
		return err
	})
	if err != nil {
		p.unsettled(c, err)
		return
	}
	p.capacity.left()
	if next {
		p.onPark(0)
	}
}

// giveBack makes a claimed delivery due at once, for another node or a later day.
func (p *Pipeline) giveBack(ctx context.Context, c claim, body string) {
	p.settle(ctx, c, func(ctx context.Context) (bool, error) { return p.o.Store.again(ctx, c, body, 0) })
}

// settle reports whether the claim was still held and is settled now.
func (p *Pipeline) settle(ctx context.Context, c claim, write func(context.Context) (bool, error)) bool {
	var held bool
	err := persist(ctx, func(ctx context.Context) error {
		var err error
		held, err = write(ctx)
		return err
	})
	if err != nil {
		p.unsettled(c, err)
		return false
	}
	if !held {
		p.o.Log.Warn("a claim on a parked delivery had ended before its attempt was settled", "id", c.id)
	}
	return held
}

func (p *Pipeline) unsettled(c claim, err error) {
	p.o.Log.Warn("an attempt could not be settled; it will be made again", "id", c.id, "error", err)
}
