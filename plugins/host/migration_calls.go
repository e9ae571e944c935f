package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/internal/backoff"
	"github.com/hubrelay/hubrelay/plugins/internal/wire"
	driverv1 "github.com/hubrelay/hubrelay/plugins/proto/driver/v1"
	"github.com/hubrelay/hubrelay/relay"
)

// cancelRetryInterval is the interval of repeated cancellations, because the first may arrive before the migration.
const cancelRetryInterval = 250 * time.Millisecond

// migrationCalls are the calls of one run of a driver.
type migrationCalls struct {
	service      driverv1.DriverClient
	description  relay.DriverDescription
	steps        map[string]bool
	o            *Options
	inventory    *serverList
	ctx          context.Context // ends with failAll
	stop         context.CancelFunc
	configureSem chan struct{} // serializes configuring

	mu                sync.Mutex
	configuredServers *[]*driverv1.Server // the current servers of the driver
	running           map[*migrationCall]struct{}
	idle              chan struct{} // closed when draining has finished
	draining          bool
	failErr           error // the reason why migrations fail, an endedError
}

// migrationCall is one call in progress.
type migrationCall struct {
	name          *driverv1.CancelRequest
	ctx           context.Context // of its stream
	cancelled     time.Time       // time of the cancellation, or zero
	warnedInvalid bool            // an invalid report was logged
}

func newMigrations(
	service driverv1.DriverClient, d relay.DriverDescription, i *serverList, o *Options,
) *migrationCalls {
	l := &migrationCalls{
		service: service, description: d, inventory: i, o: o, configureSem: make(chan struct{}, 1),
		idle:  make(chan struct{}),
		steps: make(map[string]bool, len(d.Steps)), running: make(map[*migrationCall]struct{}),
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	for _, s := range d.Steps {
		l.steps[s.ID] = true
	}
	return l
}

// notDeliveredError is the reason why the driver did not receive a call.
type notDeliveredError struct{ error }

func (e *notDeliveredError) Unwrap() error { return e.error }

var errNoServers = errors.New("the driver has not received any servers yet")

// configureDriver sends the latest servers to the driver, unless it has them.
func (c *migrationCalls) configureDriver(ctx context.Context) error {
	select {
	case c.configureSem <- struct{}{}:
		defer func() { <-c.configureSem }()
	case <-ctx.Done():
		return fmt.Errorf("wait for the driver to be configured: %w", ctx.Err())
	}
	servers := c.inventory.get()
	c.mu.Lock()
	known := c.configuredServers == servers
	c.mu.Unlock()
	switch {
	case c.ctx.Err() != nil:
		return c.endErr()
	case servers == nil:
		return errNoServers
	case known:
		return nil
	}
	_, err := c.service.Configure(ctx, &driverv1.ConfigureRequest{Config: c.o.Config, Servers: *servers})
	switch response := status.Convert(err); {
	case response.Code() == codes.InvalidArgument:
		return &rejectedError{rejectsConfigText, statusText(response)}
	case err != nil:
		return c.callError(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.configuredServers = servers
	return nil
}

// pushServers sends the servers of the previous run to a restarted driver, until it accepts them.
func (c *migrationCalls) pushServers() {
	pause := backoff.Backoff{Min: c.o.Backoff, Max: c.o.MaxBackoff}
	for {
		ctx, cancel := context.WithTimeout(c.ctx, c.o.StartupTimeout)
		err := c.configureDriver(ctx)
		cancel()
		if err == nil || errors.Is(err, errNoServers) || c.ctx.Err() != nil {
			return
		}
		c.o.Log.Error("driver rejected its servers", "error", err)
		if !pause.Sleep(c.ctx) {
			return
		}
	}
}

// requireServers waits until the driver has any list of servers. A migration contains its own two servers.
func (c *migrationCalls) requireServers(ctx context.Context) error {
	c.mu.Lock()
	told := c.configuredServers != nil
	c.mu.Unlock()
	if told {
		return nil
	}
	err := c.configureDriver(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("configure the driver: %w", ctx.Err())
	case err != nil:
		return relay.Indeterminate(err)
	}
	return nil
}

// runMigration makes one call and returns its result. A notDeliveredError means that the driver did not receive the
// call.
func (c *migrationCalls) runMigration(ctx context.Context, m relay.Migration, report func(relay.Progress)) error {
	if err := c.requireServers(ctx); err != nil {
		return err
	}
	r := &migrationCall{name: &driverv1.CancelRequest{JobId: m.JobID, Lease: m.Lease}}
	var stop context.CancelFunc
	r.ctx, stop = context.WithCancel(c.ctx)
	defer stop()
	if !c.startCall(r) {
		return c.endErr()
	}
	defer c.finishCall(r)
	stream, err := c.service.Migrate(r.ctx, wire.FromMigration(m))
	if err != nil {
		return relay.Indeterminate(c.callError(err))
	}
	defer context.AfterFunc(ctx, func() { c.cancelUntilDone(r) })()
	for {
		response, err := stream.Recv()
		if err != nil {
			return relay.Indeterminate(c.callError(err))
		}
		if p := response.GetProgress(); p != nil {
			c.forwardProgress(r, p, report)
			continue
		}
		err = wire.ToResult(response.GetResult())
		switch {
		case !errors.Is(err, wire.ErrCancelled):
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %w", err, ctx.Err())
		}
		return relay.Indeterminate(err)
	}
}

// startCall registers a call. It returns false after the end of the session.
func (c *migrationCalls) startCall(r *migrationCall) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failErr != nil || c.draining {
		return false
	}
	c.running[r] = struct{}{}
	return true
}

func (c *migrationCalls) endErr() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failErr == nil {
		return &notDeliveredError{errClosed}
	}
	return &notDeliveredError{c.failErr}
}

func (c *migrationCalls) finishCall(r *migrationCall) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, r)
	c.checkIdle()
}

func (c *migrationCalls) checkIdle() {
	if c.draining && len(c.running) == 0 {
		select {
		case <-c.idle:
		default:
			close(c.idle)
		}
	}
}

// forwardProgress forwards valid reports.
func (c *migrationCalls) forwardProgress(r *migrationCall, p *driverv1.Progress, report func(relay.Progress)) {
	if !c.steps[p.GetStep()] || len(p.GetNote()) > wire.MaxNote || p.GetBytes() < 0 || p.GetTotal() < 0 {
		if !r.warnedInvalid {
			r.warnedInvalid = true
			c.o.Log.Warn("driver sent an invalid progress report: unknown step, long note, or negative bytes",
				"job_id", r.name.GetJobId(), "step", relay.Truncate(p.GetStep(), 60), "note_bytes", len(p.GetNote()))
		}
		return
	}
	progress := wire.ToProgress(p)
	if progress.Time.IsZero() {
		progress.Time = time.Now().UTC()
	}
	report(progress)
}

// callError returns the reason why a call failed. The end of the plugin, if it is about to be detected, has precedence.
func (c *migrationCalls) callError(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the driver ended a migration without a result")
	}
	response := status.Convert(err)
	if code := response.Code(); code == codes.Unavailable || code == codes.Canceled {
		limit, cancel := context.WithTimeout(context.Background(), 2*exitTimeout)
		defer cancel()
		if _, late := await.Value(limit, c.ctx.Done()); late == nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.failErr
		}
	}
	return fmt.Errorf("the driver returned an error: %s", statusText(response))
}

// cancelUntilDone requests the end of a migration repeatedly, until it has ended.
func (c *migrationCalls) cancelUntilDone(r *migrationCall) {
	c.mu.Lock()
	told := !r.cancelled.IsZero()
	if !told {
		r.cancelled = time.Now()
	}
	c.mu.Unlock()
	if told {
		return
	}
	again := time.NewTicker(cancelRetryInterval)
	defer again.Stop()
	for {
		_, _ = c.service.Cancel(r.ctx, r.name) // health checks or hangError detect a driver that ignores this
		select {
		case <-again.C:
		case <-r.ctx.Done():
			return
		}
	}
}

// done returns nil, because the connection belongs to the process.
func (c *migrationCalls) done() <-chan error { return nil }

// hangError reports a migration that did not stop in time.
func (c *migrationCalls) hangError(now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for r := range c.running {
		if !r.cancelled.IsZero() && now.Sub(r.cancelled) > c.o.HangTimeout {
			return fmt.Errorf(
				"the driver did not stop a migration within %s and was killed (hang_timeout)",
				c.o.HangTimeout,
			)
		}
	}
	return nil
}

// drain stops running migrations.
func (c *migrationCalls) drain() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.draining = true
	for r := range c.running {
		go c.cancelUntilDone(r)
	}
	c.checkIdle()
	return c.idle
}

// failAll ends all migrations with err, and all later ones.
func (c *migrationCalls) failAll(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failErr != nil {
		return
	}
	c.failErr = &endedError{err}
	c.stop()
}
