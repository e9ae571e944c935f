package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
)

var errStopped = errors.New("ended by itself")

// components is what runs in the daemon, in the order in which it was started. A part that ends by itself ends all; they
// are stopped one after the other, the last first, so that nobody loses what it stands on.
type components struct {
	log     *slog.Logger
	running []*component
	failed  chan error
}

type component struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{}
}

func newParts(log *slog.Logger) *components {
	return &components{log: log, failed: make(chan error, 1)}
}

// startComponent runs one part until its context ends. The context carries ctx's values but not its end: only stop ends it.
func (p *components) startComponent(ctx context.Context, name string, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	one := &component{name: name, cancel: cancel, done: make(chan struct{})}
	p.running = append(p.running, one)
	go func() {
		defer close(one.done)
		err := run(ctx)
		if ctx.Err() != nil {
			if err != nil && !errors.Is(err, context.Canceled) {
				p.log.Warn("a part did not end well", "part", name, "error", err)
			}
			return
		}
		if err == nil {
			err = errStopped
		}
		select {
		case p.failed <- fmt.Errorf("%s: %w", name, err):
		default:
		}
	}()
}

// task is one of several that a part consists of.
type task struct {
	name string
	run  func(context.Context) error
}

// untilDone returns what runs it until ctx ends, and fails where it ends by itself.
func (r task) untilDone(ctx context.Context) func() error {
	return func() error {
		err := r.run(ctx)
		if err == nil && ctx.Err() == nil {
			err = errStopped
		}
		if err == nil || ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return nil
		}
		return fmt.Errorf("%s: %w", r.name, err)
	}
}

// runTogether makes one part of several, which stop side by side. Where one ends by itself, all do.
func runTogether(runs []task) func(context.Context) error {
	return func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		for _, r := range runs {
			group.Go(r.untilDone(ctx))
		}
		return group.Wait()
	}
}

// wait blocks until ctx ends (nil) or a part has ended by itself (its error).
func (p *components) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-p.failed:
		return err
	}
}

// stop ends every part, the last first, and waits for each. A part that takes longer than what is left of grace is
// named and left behind; those that it stood on then get stopMargin, since they only have to let go.
func (p *components) stop(grace time.Duration) {
	deadline := time.Now().Add(grace)
	for i := len(p.running) - 1; i >= 0; i-- {
		one := p.running[i]
		one.cancel()
		timer := time.NewTimer(time.Until(deadline))
		select {
		case <-one.done:
		case <-timer.C:
			p.log.Warn("a part did not stop in time", "part", one.name, "grace", grace)
			deadline = time.Now().Add(stopMargin)
		}
		timer.Stop()
	}
	p.running = nil
}
