// Package lifecycle runs the components of a process. A component is a function that runs until its context ends. A
// [Group] fails if one of them ends by itself.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/internal/await"
)

// ErrStopped is the failure of a component that ended without an error before it was stopped.
var ErrStopped = errors.New("stopped unexpectedly")

// Group contains running components in the order of their start. [Group.Start] may be called concurrently with all other
// methods, which are called by one goroutine. A group that has stopped cannot be used again.
type Group struct {
	log    *slog.Logger
	failed chan struct{} // closed after the first failure

	mu       sync.Mutex
	running  []*Component
	stopping bool
	failure  error // the first one
	reported bool  // whether Wait has returned it
}

// NewGroup returns a group without components.
func NewGroup(log *slog.Logger) *Group {
	return &Group{log: log, failed: make(chan struct{})}
}

// Component is a running component of a [Group].
type Component struct {
	group  *Group
	name   string
	cancel context.CancelFunc
	done   chan struct{}
}

// Start runs a component until it is stopped. Its context has the values of ctx but ignores the end of ctx. A group that
// is stopping does not run it; the returned component has ended.
func (g *Group) Start(ctx context.Context, name string, run func(context.Context) error) *Component {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := &Component{group: g, name: name, cancel: cancel, done: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopping {
		cancel()
		close(c.done)
		return c
	}
	g.running = append(g.running, c)
	go func() {
		defer close(c.done)
		g.reportEnd(ctx, name, run(ctx))
	}()
	return c
}

// reportEnd handles the end of a component. An end before the end of ctx is a failure.
func (g *Group) reportEnd(ctx context.Context, name string, err error) {
	if ctx.Err() != nil {
		if err != nil && !errors.Is(err, context.Canceled) {
			g.log.Warn("component stopped with an error", "component", name, "error", err)
		}
		return
	}
	if err == nil {
		err = ErrStopped
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failure != nil || g.stopping {
		g.log.Warn("component failed", "component", name, "error", err)
		return
	}
	g.failure = fmt.Errorf("%s: %w", name, err)
	close(g.failed)
}

// Wait blocks until ctx ends or a component fails. It returns nil or the error of the component. The caller stops the
// group, which logs a failure that Wait has not returned.
func (g *Group) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-g.failed:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reported = true
	return g.failure
}

// Run waits until ctx ends or a component fails, then stops all components concurrently. It returns the error of the
// component. So a group can be one component of another group.
func (g *Group) Run(ctx context.Context) error {
	err := g.Wait(ctx)
	list := g.beginStop()
	for _, c := range list {
		c.Cancel()
	}
	for _, c := range list {
		<-c.done
	}
	return err
}

// StopInReverse stops one component after the other, the latest first, because each may depend on earlier ones. A
// component that does not stop within the rest of the grace period is logged and abandoned. The components before it
// then get margin, because they only have to release resources.
func (g *Group) StopInReverse(grace, margin time.Duration) {
	wait := grace
	deadline := time.Now().Add(wait)
	for _, c := range slices.Backward(g.beginStop()) {
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		if err := c.Stop(ctx); err != nil {
			g.log.Warn("component did not stop in time", "component", c.name, "grace", wait.String())
			wait = margin
			deadline = time.Now().Add(wait)
		}
		cancel()
	}
}

func (g *Group) beginStop() []*Component {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopping = true
	if g.failure != nil && !g.reported {
		g.log.Warn("component failed", "error", g.failure)
	}
	return slices.Clone(g.running)
}

// Cancel ends the context of the component.
func (c *Component) Cancel() { c.cancel() }

// Stop ends the context of the component and waits until the component has ended. It returns an error if ctx ends first.
func (c *Component) Stop(ctx context.Context) error {
	c.cancel()
	if _, err := await.Value(ctx, c.done); err != nil {
		return err
	}
	c.group.mu.Lock()
	defer c.group.mu.Unlock()
	c.group.running = slices.DeleteFunc(c.group.running, func(other *Component) bool { return other == c })
	return nil
}
