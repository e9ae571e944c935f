package sdk

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/plugins/internal/wire"
	"github.com/hubrelay/hubrelay/plugins/proto/driver/v1"
	"github.com/hubrelay/hubrelay/relay"
)

// ServeDriver runs a driver until the daemon closes it, closes the driver, and returns. The operator's `config` of the
// driver is decoded before the first Configure.
//
// It sets slog's default logger. A program calls it once, and must not read the standard input.
func ServeDriver(driver relay.Driver, opts ...Option) error {
	o := newOptions(opts)
	if driver == nil {
		return errors.New("sdk.ServeDriver needs a driver")
	}
	if o.concurrency != DefaultConcurrency {
		return errors.New("sdk.Concurrency is for sinks: how many migrations run at once is the relay's choice")
	}
	if o.explain != nil {
		return errors.New("sdk.Explain is for sinks: a driver sends nothing")
	}
	if err := o.check(); err != nil {
		return err
	}
	p, err := newServer(wire.KindDriver, o)
	if err != nil {
		return err
	}
	s := &driverServer{server: p, driver: driver, running: make(map[migrateCall]context.CancelFunc)}
	err = p.serve(func(server *grpc.Server) { driverv1.RegisterDriverServer(server, s) }, s.wait)
	return errors.Join(err, driver.Close())
}

// migrateCall names one call of Migrate.
type migrateCall struct {
	job   string
	lease int64
}

type driverServer struct {
	driverv1.UnimplementedDriverServer
	*server
	driver      relay.Driver
	configuring sync.Mutex // held by one Configure
	configured  atomic.Bool

	mu      sync.Mutex
	running map[migrateCall]context.CancelFunc
	ended   bool
	calls   sync.WaitGroup
}

// Describe returns the description of the author's driver.
func (s *driverServer) Describe(ctx context.Context, _ *driverv1.DescribeRequest) (*driverv1.DescribeResponse, error) {
	d, err := s.driver.Describe(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	if d.Version == "" {
		d.Version = s.o.version
	}
	return wire.FromDescription(d), nil
}

// Configure decodes the configuration, the first time, and tells the author's driver of the servers.
func (s *driverServer) Configure(
	ctx context.Context, r *driverv1.ConfigureRequest,
) (_ *driverv1.ConfigureResponse, err error) {
	s.configuring.Lock()
	defer s.configuring.Unlock()
	defer func() {
		if v := recover(); v != nil {
			err = status.Error(codes.Internal, s.panicked(v, "Configure", "").Error())
		}
	}()
	if !s.started.Load() {
		if err := s.start(ctx, r.GetConfig()); err != nil {
			return nil, err
		}
	}
	if err := s.driver.Configure(ctx, wire.ToServers(r.GetServers())); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	s.configured.Store(true)
	return &driverv1.ConfigureResponse{}, nil
}

// Validate returns the problems of a configuration.
func (s *driverServer) Validate(ctx context.Context, r *driverv1.ValidateRequest) (*driverv1.ValidateResponse, error) {
	s.configuring.Lock()
	defer s.configuring.Unlock()
	if s.started.Load() {
		return nil, errAlreadyConfigured
	}
	wrong, err := s.validate(ctx, r.GetConfig())
	if err != nil {
		return nil, err
	}
	return &driverv1.ValidateResponse{Problems: wire.FromDriverProblems(wrong)}, nil
}

// Migrate has the author's driver move an instance.
func (s *driverServer) Migrate(
	r *driverv1.MigrateRequest, stream grpc.ServerStreamingServer[driverv1.MigrateResponse],
) error {
	if !s.configured.Load() {
		return status.Error(codes.FailedPrecondition, "the driver is not configured")
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	this := migrateCall{r.GetJobId(), r.GetLease()}
	if err := s.trackCall(this, cancel); err != nil {
		return err
	}
	defer s.untrackCall(this)
	progress := newProgressQueue(s.log)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		progress.send(stream)
	}()
	err := s.runMigrate(ctx, wire.ToMigration(r), progress.add)
	progress.finish()
	<-sent
	return stream.Send(&driverv1.MigrateResponse{
		Event: &driverv1.MigrateResponse_Result{Result: wire.FromResult(ctx, err)},
	})
}

// runMigrate makes a panic of the author's code a migration that is not settled.
func (s *driverServer) runMigrate(ctx context.Context, m relay.Migration, report func(relay.Progress)) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = relay.Indeterminate(s.panicked(v, "Migrate", m.JobID))
		}
	}()
	return s.driver.Migrate(ctx, m, report)
}

func (s *driverServer) trackCall(this migrateCall, cancel context.CancelFunc) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.running[this]; ok {
		return status.Error(codes.AlreadyExists, "this migration is already running with the same lease")
	}
	if s.ended {
		return status.Error(codes.Unavailable, "the plugin is stopping")
	}
	s.running[this] = cancel
	s.calls.Add(1)
	return nil
}

func (s *driverServer) untrackCall(this migrateCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, this)
	s.calls.Done()
}

// Cancel ends the context of a call, if it runs.
func (s *driverServer) Cancel(_ context.Context, r *driverv1.CancelRequest) (*driverv1.CancelResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel, ok := s.running[migrateCall{r.GetJobId(), r.GetLease()}]; ok {
		cancel()
	}
	return &driverv1.CancelResponse{}, nil
}

// wait returns when all calls have ended, or ctx ends.
func (s *driverServer) wait(ctx context.Context) {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		s.calls.Wait()
	}()
	_, _ = await.Value(ctx, idle)
}
