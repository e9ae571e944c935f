package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hubrelay/hubrelay/internal/await"
)

var errStopped = errors.New("stopped unexpectedly")

// components are the running components in the order of their start. If one stops by itself, all are stopped. They
// stop one after the other in reverse order, because each may depend on earlier ones.
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

func newComponents(log *slog.Logger) *components {
	return &components{log: log, failed: make(chan error, 1)}
}

// startComponent runs one component until stop ends it. Its context has the values of ctx but ignores the end of
// ctx.
func (p *components) startComponent(ctx context.Context, name string, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := &component{name: name, cancel: cancel, done: make(chan struct{})}
	p.running = append(p.running, c)
	go func() {
		defer close(c.done)
		err := run(ctx)
		if ctx.Err() != nil {
			if err != nil && !errors.Is(err, context.Canceled) {
				p.log.Warn("component stopped with an error", "component", name, "error", err)
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

// task is one of several goroutines of a component.
type task struct {
	name string
	run  func(context.Context) error
}

// untilDone returns a function that runs the task. It returns an error if the task ends before ctx.
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

// runTogether combines tasks into one component. They stop concurrently. If one stops by itself, all are stopped.
func runTogether(runs []task) func(context.Context) error {
	return func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		for _, r := range runs {
			group.Go(r.untilDone(ctx))
		}
		return group.Wait()
	}
}

// wait blocks until ctx ends or a component fails. It returns the error of the component.
func (p *components) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-p.failed:
		return err
	}
}

// stop stops all components in reverse order and waits for each. A component that exceeds the remaining grace
// period is logged and abandoned. The components before it then get stopMargin, because they only have to release
// resources.
func (p *components) stop(grace time.Duration) {
	deadline := time.Now().Add(grace)
	for i := len(p.running) - 1; i >= 0; i-- {
		c := p.running[i]
		c.cancel()
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		if _, late := await.Value(ctx, c.done); late != nil {
			p.log.Warn("component did not stop in time", "component", c.name, "grace", grace.String())
			deadline = time.Now().Add(stopMargin)
		}
		cancel()
	}
	p.running = nil
}
