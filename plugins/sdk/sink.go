package sdk

import (
	"context"
	"errors"
	"os"
	"runtime/debug"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/plugins/internal/wire"
	"github.com/hubrelay/hubrelay/plugins/proto/sink/v1"
	"github.com/hubrelay/hubrelay/relay"
)

const (
	maxConcurrency = wire.MaxCredits
	// gcPercent is for programs that hold little and handle much: the daemon's own, for the same reason.
	gcPercent = 300
)

// ServeSink handles notifications one by one until the daemon ends the plugin, and returns. The notifications of one
// delivery (several with a digest or a batch) arrive one after the other. The first error ends the delivery with this
// error.
//
// It sets slog's default logger, and sets GOGC to 300 unless the environment sets it. A program calls it once, and must
// not read the standard input.
func ServeSink(handler func(context.Context, relay.Notification) error, opts ...Option) error {
	if handler == nil {
		return errors.New("sdk.ServeSink needs a handler")
	}
	return ServeDeliveries(func(ctx context.Context, d relay.Delivery) error {
		for i := range d.Notifications {
			if err := handler(ctx, d.Notifications[i]); err != nil {
				return err
			}
		}
		return nil
	}, opts...)
}

// ServeDeliveries is [ServeSink] for a handler that needs the attempt or the counts of a digest.
func ServeDeliveries(handler func(context.Context, relay.Delivery) error, opts ...Option) error {
	o := newOptions(opts)
	if handler == nil {
		return errors.New("sdk.ServeDeliveries needs a handler")
	}
	if err := o.check(); err != nil {
		return err
	}
	p, err := newServer(wire.KindSink, o)
	if err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	s := newSinkServer(handler, p)
	return p.serve(func(server *grpc.Server) { sinkv1.RegisterSinkServer(server, s) }, s.wait)
}

type sinkServer struct {
	sinkv1.UnimplementedSinkServer
	*server
	handler func(context.Context, relay.Delivery) error
	handled chan struct{} // closed when all handlers have ended

	configured atomic.Bool
	opened     atomic.Bool
}

func newSinkServer(handler func(context.Context, relay.Delivery) error, s *server) *sinkServer {
	return &sinkServer{server: s, handler: handler, handled: make(chan struct{})}
}

// Configure decodes the configuration and starts what the author wants started.
func (s *sinkServer) Configure(ctx context.Context, r *sinkv1.ConfigureRequest) (*sinkv1.ConfigureResponse, error) {
	if !s.configured.CompareAndSwap(false, true) {
		return nil, status.Error(codes.FailedPrecondition, "the plugin is already configured")
	}
	if err := s.start(ctx, r.GetConfig()); err != nil {
		return nil, err
	}
	return &sinkv1.ConfigureResponse{Version: s.o.version}, nil
}

var errAlreadyConfigured = status.Error(codes.FailedPrecondition,
	"the process is configured already, and responds to no other request")

// Validate returns the problems of a configuration.
func (s *sinkServer) Validate(ctx context.Context, r *sinkv1.ValidateRequest) (*sinkv1.ValidateResponse, error) {
	if !s.configured.CompareAndSwap(false, true) {
		return nil, errAlreadyConfigured
	}
	wrong, err := s.validate(ctx, r.GetConfig())
	if err != nil {
		return nil, err
	}
	return &sinkv1.ValidateResponse{Problems: wire.FromProblems(wrong)}, nil
}

// Explain shows what the sink would send for a delivery.
func (s *sinkServer) Explain(ctx context.Context, r *sinkv1.ExplainRequest) (_ *sinkv1.ExplainResponse, err error) {
	if s.o.explain == nil {
		return s.UnimplementedSinkServer.Explain(ctx, r)
	}
	if !s.configured.CompareAndSwap(false, true) {
		return nil, errAlreadyConfigured
	}
	defer func() {
		if v := recover(); v != nil {
			err = status.Error(codes.Internal, s.panicked(v, "Explain", r.GetDelivery().GetId()).Error())
		}
	}()
	if err := s.o.decode(r.GetConfig()); err != nil {
		return nil, status.Error(codes.InvalidArgument, "config: "+err.Error())
	}
	d, _ := wire.ToDelivery(r.GetDelivery())
	shown, err := s.o.explain(d)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return wire.FromExplanation(shown), nil
}

// wait returns when all handlers have ended, or ctx ends.
func (s *sinkServer) wait(ctx context.Context) {
	if !s.opened.Load() {
		return
	}
	_, _ = await.Value(ctx, s.handled)
}
