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
	failErr           error // the reason why migrations fail
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
func (l *migrationCalls) configureDriver(ctx context.Context) error {
	select {
	case l.configureSem <- struct{}{}:
		defer func() { <-l.configureSem }()
	case <-ctx.Done():
		return fmt.Errorf("wait for the driver to be configured: %w", ctx.Err())
	}
	servers := l.inventory.get()
	l.mu.Lock()
	known := l.configuredServers == servers
	l.mu.Unlock()
	switch {
	case l.ctx.Err() != nil:
		return l.endErr()
	case servers == nil:
		return errNoServers
	case known:
		return nil
	}
	_, err := l.service.Configure(ctx, &driverv1.ConfigureRequest{Config: l.o.Config, Servers: *servers})
	switch response := status.Convert(err); {
	case response.Code() == codes.InvalidArgument:
		return &rejectedError{rejectsConfigText, statusText(response)}
	case err != nil:
		return l.callError(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.configuredServers = servers
	return nil
}

// pushServers sends the servers of the previous run to a restarted driver, until it accepts them.
func (l *migrationCalls) pushServers() {
	pause := backoff.Backoff{Min: l.o.Backoff, Max: l.o.MaxBackoff}
	for {
		ctx, cancel := context.WithTimeout(l.ctx, l.o.StartupTimeout)
		err := l.configureDriver(ctx)
		cancel()
		if err == nil || errors.Is(err, errNoServers) || l.ctx.Err() != nil {
			return
		}
		l.o.Log.Error("driver rejected its servers", "error", err)
		if !pause.Sleep(l.ctx) {
			return
		}
	}
}

// requireServers waits until the driver has any list of servers. A migration contains its own two servers.
func (l *migrationCalls) requireServers(ctx context.Context) error {
	l.mu.Lock()
	told := l.configuredServers != nil
	l.mu.Unlock()
	if told {
		return nil
	}
	err := l.configureDriver(ctx)
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
func (l *migrationCalls) runMigration(ctx context.Context, m relay.Migration, report func(relay.Progress)) error {
	if err := l.requireServers(ctx); err != nil {
		return err
	}
	r := &migrationCall{name: &driverv1.CancelRequest{JobId: m.JobID, Lease: m.Lease}}
	var stop context.CancelFunc
	r.ctx, stop = context.WithCancel(l.ctx)
	defer stop()
	if !l.startCall(r) {
		return l.endErr()
	}
	defer l.finishCall(r)
	stream, err := l.service.Migrate(r.ctx, wire.FromMigration(m))
	if err != nil {
		return relay.Indeterminate(l.callError(err))
	}
	defer context.AfterFunc(ctx, func() { l.cancelUntilDone(r) })()
	for {
		response, err := stream.Recv()
		if err != nil {
			return relay.Indeterminate(l.callError(err))
		}
		if p := response.GetProgress(); p != nil {
			l.forwardProgress(r, p, report)
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
func (l *migrationCalls) startCall(r *migrationCall) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failErr != nil || l.draining {
		return false
	}
	l.running[r] = struct{}{}
	return true
}

func (l *migrationCalls) endErr() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failErr == nil {
		return &notDeliveredError{errClosed}
	}
	return &notDeliveredError{l.failErr}
}

func (l *migrationCalls) finishCall(r *migrationCall) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.running, r)
	l.checkIdle()
}

func (l *migrationCalls) checkIdle() {
	if l.draining && len(l.running) == 0 {
		select {
		case <-l.idle:
		default:
			close(l.idle)
		}
	}
}

// forwardProgress forwards valid reports.
func (l *migrationCalls) forwardProgress(r *migrationCall, p *driverv1.Progress, report func(relay.Progress)) {
	if !l.steps[p.GetStep()] || len(p.GetNote()) > wire.MaxNote || p.GetBytes() < 0 || p.GetTotal() < 0 {
		if !r.warnedInvalid {
			r.warnedInvalid = true
			l.o.Log.Warn("driver sent an invalid progress report: unknown step, long note, or negative bytes",
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
func (l *migrationCalls) callError(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the driver ended a migration without a result")
	}
	response := status.Convert(err)
	if code := response.Code(); code == codes.Unavailable || code == codes.Canceled {
		limit, cancel := context.WithTimeout(context.Background(), 2*exitTimeout)
		defer cancel()
		if _, late := await.Value(limit, l.ctx.Done()); late == nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.failErr
		}
	}
	return fmt.Errorf("the driver returned an error: %s", statusText(response))
}

// cancelUntilDone requests the end of a migration repeatedly, until it has ended.
func (l *migrationCalls) cancelUntilDone(r *migrationCall) {
	l.mu.Lock()
	told := !r.cancelled.IsZero()
	if !told {
		r.cancelled = time.Now()
	}
	l.mu.Unlock()
	if told {
		return
	}
	again := time.NewTicker(cancelRetryInterval)
	defer again.Stop()
	for {
		_, _ = l.service.Cancel(r.ctx, r.name) // health checks or hangError detect a driver that ignores this
		select {
		case <-again.C:
		case <-r.ctx.Done():
			return
		}
	}
}

// done returns nil, because the connection belongs to the process.
func (l *migrationCalls) done() <-chan error { return nil }

// hangError reports a migration that did not stop in time.
func (l *migrationCalls) hangError(now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for r := range l.running {
		if !r.cancelled.IsZero() && now.Sub(r.cancelled) > l.o.HangTimeout {
			return fmt.Errorf(
				"the driver did not stop a migration within %s and was killed (hang_timeout)",
				l.o.HangTimeout,
			)
		}
	}
	return nil
}

// drain stops running migrations.
func (l *migrationCalls) drain() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draining = true
	for r := range l.running {
		go l.cancelUntilDone(r)
	}
	l.checkIdle()
	return l.idle
}

// failAll ends all migrations with err, and all later ones.
func (l *migrationCalls) failAll(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failErr != nil {
		return
	}
	l.failErr = err
	l.stop()
}
