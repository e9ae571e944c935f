package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
)

var errEnded = errors.New("ended by itself")

// parts is what runs in the daemon, in the order in which it was started. A part that ends by itself ends all; they
// are stopped one after the other, the last first, so that nobody loses what it stands on.
type parts struct {
	log     *slog.Logger
	running []*part
	ended   chan error
}

type part struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{}
}

func newParts(log *slog.Logger) *parts {
	return &parts{log: log, ended: make(chan error, 1)}
}

// start runs one part until its context ends. The context carries ctx's values but not its end: only stop ends it.
func (p *parts) start(ctx context.Context, name string, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	one := &part{name: name, cancel: cancel, done: make(chan struct{})}
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
			err = errEnded
		}
		select {
		case p.ended <- fmt.Errorf("%s: %w", name, err):
		default:
		}
	}()
}

// run is one of several that a part consists of.
type run struct {
	name string
	run  func(context.Context) error
}

// guard returns what runs it until ctx ends, and fails where it ends by itself.
func (r run) guard(ctx context.Context) func() error {
	return func() error {
		err := r.run(ctx)
		if err == nil && ctx.Err() == nil {
			err = errEnded
		}
		if err == nil || ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return nil
		}
		return fmt.Errorf("%s: %w", r.name, err)
	}
}

// together makes one part of several, which stop side by side. Where one ends by itself, all do.
func together(runs []run) func(context.Context) error {
	return func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		for _, r := range runs {
			group.Go(r.guard(ctx))
		}
		return group.Wait()
	}
}

// wait blocks until ctx ends (nil) or a part has ended by itself (its error).
func (p *parts) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-p.ended:
		return err
	}
}

// stop ends every part, the last first, and waits for each. A part that takes longer than what is left of grace is
// named and left behind; those that it stood on then get stopMargin, since they only have to let go.
func (p *parts) stop(grace time.Duration) {
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
