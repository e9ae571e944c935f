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
	over        chan struct{} // closed by fail

	mu      sync.Mutex
	told    *[]*driverv1.Server // what it was last configured with
	running map[*migration]struct{}
	idle    chan struct{} // closed when it drains and nothing runs
	closing bool
	failed  error // why nothing can be migrated any more
}

// migration is one call on its way.
type migration struct {
	name      *driverv1.CancelRequest
	ctx       context.Context // of its stream
	stop      context.CancelFunc
	cancelled time.Time // zero until the driver is told to stop
	strange   bool      // it was logged that a report was of no use
}

func newMigrations(service driverv1.DriverClient, d relay.DriverDescription, o *Options) *migrations {
	l := &migrations{
		service: service, description: d, o: o, over: make(chan struct{}), idle: make(chan struct{}),
		steps: make(map[string]bool, len(d.Steps)), running: make(map[*migration]struct{}),
	}
	for _, s := range d.Steps {
		l.steps[s.ID] = true
	}
	return l
}

// configure tells the driver of its servers, unless it knows them.
func (l *migrations) configure(ctx context.Context, servers *[]*driverv1.Server, config []byte) error {
	l.mu.Lock()
	known := l.told == servers
	l.mu.Unlock()
	if known {
		return nil
	}
	_, err := l.service.Configure(ctx, &driverv1.ConfigureRequest{Config: config, Servers: *servers})
	switch answer := status.Convert(err); {
	case answer.Code() == codes.InvalidArgument:
		return &refusedError{statusText(answer)}
	case err != nil:
		return fmt.Errorf("configure the driver: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = servers
	return nil
}

// migrate makes one call and returns its result.
func (l *migrations) migrate(ctx context.Context, m relay.Migration, report func(relay.Progress)) error {
	r := &migration{name: &driverv1.CancelRequest{JobId: m.JobID, Lease: m.Lease}}
	r.ctx, r.stop = context.WithCancel(context.Background())
	defer r.stop()
	if err := l.begin(r); err != nil {
		return relay.Unsettled(err)
	}
	defer l.end(r)
	stream, err := l.service.Migrate(r.ctx, wire.FromMigration(m))
	if err != nil {
		return l.broken(err)
	}
	defer context.AfterFunc(ctx, func() { l.cancel(r) })()
	for {
		answer, err := stream.Recv()
		if err != nil {
			return l.broken(err)
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

func (l *migrations) begin(r *migration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.failed != nil:
		return l.failed
	case l.closing:
		return errClosed
	}
	l.running[r] = struct{}{}
	return nil
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
		progress.Time = time.Now()
	}
	report(progress)
}

// broken says why a migration has ended without a result. Where the plugin is about to be found dead, that is why.
func (l *migrations) broken(err error) error {
	answer := status.Convert(err)
	if code := answer.Code(); code == codes.Unavailable || code == codes.Canceled {
		last := time.NewTimer(2 * endTime)
		defer last.Stop()
		select {
		case <-l.over:
			l.mu.Lock()
			defer l.mu.Unlock()
			return relay.Unsettled(l.failed)
		case <-last.C:
		}
	}
	if errors.Is(err, io.EOF) {
		return relay.Unsettled(errors.New("the driver ended the migration without a result"))
	}
	return relay.Unsettled(fmt.Errorf("the driver broke the migration off: %s", statusText(answer)))
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

// ended is nil: calls come and go, and the connection belongs to the process.
func (l *migrations) ended() <-chan error { return nil }

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
	close(l.over)
	for r := range l.running {
		r.stop()
	}
}
