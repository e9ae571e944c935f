package sdk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/hubrelay/hubrelay/plugins/internal/wire"
	"github.com/hubrelay/hubrelay/plugins/proto/sink/v1"
	"github.com/hubrelay/hubrelay/relay"
)

const (
	maxConcurrency = wire.MaxCredits
	// stopTime is what OnStop may take; the daemon kills a plugin a second later.
	stopTime = 2 * time.Second
	// gcPercent is for programs that hold little and handle much: the daemon's own, for the same reason.
	gcPercent = 300
)

// ErrNotAPlugin is returned where the program was not started by hubrelay.
var ErrNotAPlugin = errors.New("this program is a plugin of hubrelay, which starts it: name it as the command of a sink of type plugin, or try it with `hubrelay plugins check PROGRAM`")

// ServeSink handles notifications, one by one, until the daemon has no more, and returns then. The notifications of one
// delivery (several where the sink has a digest) come one after the other; the first error ends it and is the delivery's.
//
// It sets slog's default logger, and collects garbage a third as often unless GOGC is set. A program calls it once, and
// nothing else may read the standard input.
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

// ServeDeliveries is [ServeSink] for a handler that wants to know the attempt, or what a digest counted.
func ServeDeliveries(handler func(context.Context, relay.Delivery) error, opts ...Option) error {
	o := newOptions(opts)
	if handler == nil {
		return errors.New("sdk.ServeDeliveries needs a handler")
	}
	if err := o.check(); err != nil {
		return err
	}
	if os.Getenv(wire.CookieName) != wire.KindSink {
		return ErrNotAPlugin
	}
	log := slog.New(newLogHandler(os.Stderr)) // before Serve puts something else in its place
	slog.SetDefault(log)
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	s := newSinkServer(handler, o, log)
	defer s.cancel()
	go s.followDaemon(os.Stdin)
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig:  goplugin.HandshakeConfig{MagicCookieKey: wire.CookieName, MagicCookieValue: wire.KindSink},
		VersionedPlugins: map[int]goplugin.PluginSet{wire.Version: {wire.KindSink: adapter{server: s}}},
		Logger:           hclog.NewNullLogger(),
		GRPCServer: func(list []grpc.ServerOption) *grpc.Server {
			server := grpc.NewServer(append(list, grpc.MaxRecvMsgSize(wire.MaxMessage), grpc.MaxSendMsgSize(wire.MaxMessage),
				grpc.InitialWindowSize(wire.Window), grpc.InitialConnWindowSize(wire.Window))...)
			s.server.Store(server)
			return server
		},
	})
	return s.stopped()
}

// adapter registers the service with go-plugin's server.
type adapter struct {
	goplugin.NetRPCUnsupportedPlugin
	server *sinkServer
}

func (a adapter) GRPCServer(_ *goplugin.GRPCBroker, s *grpc.Server) error {
	sinkv1.RegisterSinkServer(s, a.server)
	return nil
}

func (adapter) GRPCClient(context.Context, *goplugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errors.New("a plugin has no client")
}

// followDaemon stops the server when the pipe to the daemon is closed, which is when the daemon is no more.
func (s *sinkServer) followDaemon(pipe io.Reader) {
	_, _ = io.Copy(io.Discard, pipe)
	s.cancel()
	if server := s.server.Load(); server != nil {
		server.Stop()
	}
}

// stopped does what is left to do after the last delivery.
func (s *sinkServer) stopped() error {
	s.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	if s.opened.Load() {
		select {
		case <-s.handled:
		case <-ctx.Done():
		}
	}
	if s.o.stop == nil || !s.started.Load() {
		return nil
	}
	if err := s.o.stop(ctx); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return nil
}

type sinkServer struct {
	sinkv1.UnimplementedSinkServer
	handler func(context.Context, relay.Delivery) error
	o       *options
	log     *slog.Logger
	ctx     context.Context // of all handlers
	cancel  context.CancelFunc
	handled chan struct{} // closed when no handler runs any more

	configured atomic.Bool
	started    atomic.Bool
	opened     atomic.Bool
	server     atomic.Pointer[grpc.Server]
}

func newSinkServer(handler func(context.Context, relay.Delivery) error, o *options, log *slog.Logger) *sinkServer {
	s := &sinkServer{handler: handler, o: o, log: log, handled: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}
