package plugins

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hubrelay/hubrelay/plugins/internal/wire"
	"github.com/hubrelay/hubrelay/plugins/proto/driver/v1"
	"github.com/hubrelay/hubrelay/relay"
)

// cancelAgain is how often a driver is told to stop a migration: the first time may come before the migration itself.
const cancelAgain = 250 * time.Millisecond

// migrations are what one run of a driver has in hand.
type migrations struct {
	service     driverv1.DriverClient
	description relay.DriverDescription
	steps       map[string]bool
	o           *Options
	inventory   *inventory
	ctx         context.Context // until fail
	stop        context.CancelFunc
	turn        chan struct{} // held by one who configures

	mu      sync.Mutex
	told    *[]*driverv1.Server // what it is configured with
	running map[*migration]struct{}
	idle    chan struct{} // closed when it drains and nothing runs
	closing bool
	failed  error // why nothing can be migrated any more
}

// migration is one call on its way.
type migration struct {
	name      *driverv1.CancelRequest
	ctx       context.Context // of its stream
	cancelled time.Time       // zero until the driver is told to stop
	strange   bool            // it was logged that a report was of no use
}

func newMigrations(service driverv1.DriverClient, d relay.DriverDescription, i *inventory, o *Options) *migrations {
	l := &migrations{
		service: service, description: d, inventory: i, o: o, turn: make(chan struct{}, 1), idle: make(chan struct{}),
		steps: make(map[string]bool, len(d.Steps)), running: make(map[*migration]struct{}),
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	for _, s := range d.Steps {
		l.steps[s.ID] = true
	}
	return l
}

// unheardError says why the driver has not heard of a call.
type unheardError struct{ error }

func (e *unheardError) Unwrap() error { return e.error }

var errNoServers = errors.New("the driver has not been told of any servers yet")

// configure tells the driver of the latest servers, unless it knows them.
func (l *migrations) configure(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return fmt.Errorf("wait for the driver to be configured: %w", ctx.Err())
	}
	servers := l.inventory.get()
	l.mu.Lock()
	known := l.told == servers
	l.mu.Unlock()
	switch {
	case l.ctx.Err() != nil:
		return l.ended()
	case servers == nil:
		return errNoServers
	case known:
		return nil
	}
	_, err := l.service.Configure(ctx, &driverv1.ConfigureRequest{Config: l.o.Config, Servers: *servers})
	switch answer := status.Convert(err); {
	case answer.Code() == codes.InvalidArgument:
		return &refusedError{refusesConfig, statusText(answer)}
	case err != nil:
		return l.why(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = servers
	return nil
}

// remind tells a driver that was started again of the servers that the one before knew, until it takes them.
func (l *migrations) remind() {
	for failures := 1; ; failures++ {
		ctx, cancel := context.WithTimeout(l.ctx, l.o.StartupTimeout)
		err := l.configure(ctx)
		cancel()
		if err == nil || errors.Is(err, errNoServers) || l.ctx.Err() != nil {
			return
		}
		l.o.Log.Error("the driver runs, but does not take its servers; it is told again", "error", err)
		if !relay.Pause(l.ctx, jitter(backoff(failures, l.o.Backoff, l.o.MostBackoff))) {
			return
		}
	}
}

// configured makes sure that the driver knows some servers; a migration brings its own two with it.
func (l *migrations) configured(ctx context.Context) error {
	l.mu.Lock()
	told := l.told != nil
	l.mu.Unlock()
	if told {
		return nil
	}
	err := l.configure(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("configure the driver: %w", ctx.Err())
	case err != nil:
		return relay.Unsettled(err)
	}
	return nil
}

// migrate makes one call and returns its result. After an unheardError the driver has not heard of it.
func (l *migrations) migrate(ctx context.Context, m relay.Migration, report func(relay.Progress)) error {
	if err := l.configured(ctx); err != nil {
		return err
	}
	r := &migration{name: &driverv1.CancelRequest{JobId: m.JobID, Lease: m.Lease}}
	var stop context.CancelFunc
	r.ctx, stop = context.WithCancel(l.ctx)
	defer stop()
	if !l.begin(r) {
		return l.ended()
	}
	defer l.end(r)
	stream, err := l.service.Migrate(r.ctx, wire.FromMigration(m))
	if err != nil {
		return relay.Unsettled(l.why(err))
	}
	defer context.AfterFunc(ctx, func() { l.cancel(r) })()
	for {
		answer, err := stream.Recv()
		if err != nil {
			return relay.Unsettled(l.why(err))
		}
		if p := answer.GetProgress(); p != nil {
			l.tell(r, p, report)
			continue
		}
		err = wire.ToResult(answer.GetResult())
		switch {
		case !errors.Is(err, wire.ErrCancelled):
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %w", err, ctx.Err())
		}
		return relay.Unsettled(err)
	}
}

// begin counts a call, unless it is too late.
func (l *migrations) begin(r *migration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil || l.closing {
		return false
	}
	l.running[r] = struct{}{}
	return true
}

func (l *migrations) ended() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil {
		return &unheardError{errClosed}
	}
	return &unheardError{l.failed}
}

func (l *migrations) end(r *migration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.running, r)
	l.checkIdle()
}

func (l *migrations) checkIdle() {
	if l.closing && len(l.running) == 0 {
		select {
		case <-l.idle:
		default:
			close(l.idle)
		}
	}
}

// tell passes a report on that makes sense.
func (l *migrations) tell(r *migration, p *driverv1.Progress, report func(relay.Progress)) {
	if !l.steps[p.GetStep()] || len(p.GetNote()) > wire.MaxNote || p.GetBytes() < 0 || p.GetTotal() < 0 {
		if !r.strange {
			r.strange = true
			l.o.Log.Warn("the driver reports what makes no sense: a step that it did not describe, a note that is too long, or negative bytes",
				"job", r.name.GetJobId(), "step", relay.Clip(p.GetStep(), 60), "note_bytes", len(p.GetNote()))
		}
		return
	}
	progress := wire.ToProgress(p)
	if progress.Time.IsZero() {
		progress.Time = time.Now().UTC()
	}
	report(progress)
}

// why says why a call has failed. Where the plugin is about to be found dead, that is why.
func (l *migrations) why(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the driver ended a migration without a result")
	}
	answer := status.Convert(err)
	if code := answer.Code(); code == codes.Unavailable || code == codes.Canceled {
		last := time.NewTimer(2 * endTime)
		defer last.Stop()
		select {
		case <-l.ctx.Done():
		case <-last.C:
		}
		if l.ctx.Err() != nil { // a stall may have made both ready
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.failed
		}
	}
	return fmt.Errorf("the driver broke a call off: %s", statusText(answer))
}

// cancel tells the driver to stop a migration, until it has ended.
func (l *migrations) cancel(r *migration) {
	l.mu.Lock()
	told := !r.cancelled.IsZero()
	if !told {
		r.cancelled = time.Now()
	}
	l.mu.Unlock()
	if told {
		return
	}
	again := time.NewTicker(cancelAgain)
	defer again.Stop()
	for {
		_, _ = l.service.Cancel(r.ctx, r.name) // a driver that does not hear this is found by its health, or by hung
		select {
		case <-again.C:
		case <-r.ctx.Done():
			return
		}
	}
}

// over is nil: calls come and go, and the connection belongs to the process.
func (l *migrations) over() <-chan error { return nil }

// hung tells of a migration that should have stopped a while ago.
func (l *migrations) hung(now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for r := range l.running {
		if !r.cancelled.IsZero() && now.Sub(r.cancelled) > l.o.HangTimeout {
			return fmt.Errorf("the driver did not stop a migration within %s of being told to and was killed (hang_timeout)", l.o.HangTimeout)
		}
	}
	return nil
}

// drain stops what runs.
func (l *migrations) drain() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closing = true
	for r := range l.running {
		go l.cancel(r)
	}
	l.checkIdle()
	return l.idle
}

// fail ends every migration with err, and every later one.
func (l *migrations) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil {
		return
	}
	l.failed = err
	l.stop()
}
