package sdk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hubrelay/hubrelay/plugins/internal/wire"
)

// stopTime is the time limit of a shutdown. The daemon kills the plugin a second later.
const stopTime = 2 * time.Second

// ErrNotAPlugin is returned where the program was not started by hubrelay.
var ErrNotAPlugin = errors.New(
	"this program is a plugin of hubrelay, which starts it: name it as the command of a sink of type plugin or of " +
		"the migration's driver, or try it with `hubrelay plugins check PROGRAM`",
)

// server contains what all kinds of plugins share.
type server struct {
	kind   string
	o      *options
	log    *slog.Logger
	ctx    context.Context // of all that the author's code does
	cancel context.CancelFunc
	grpc   atomic.Pointer[grpc.Server]

	started atomic.Bool // configured, and OnStart has returned
}

// newServer turns the process into a plugin of a kind. It fails if the process was not started as one.
func newServer(kind string, o *options) (*server, error) {
	switch wanted := os.Getenv(wire.CookieName); wanted {
	case kind:
	case wire.KindSink, wire.KindDriver:
		return nil, fmt.Errorf("this program is a plugin of the kind %s, and was started as a %s", kind, wanted)
	default:
		return nil, ErrNotAPlugin
	}
	s := &server{kind: kind, o: o, log: slog.New(newLogHandler(os.Stderr))} // before Serve replaces it
	s.ctx, s.cancel = context.WithCancel(context.Background())
	slog.SetDefault(s.log)
	return s, nil
}

// serve answers the daemon until the daemon ends the plugin. It returns when wait returns, which is when the author's
// code has ended or its context ends.
func (s *server) serve(register func(*grpc.Server), wait func(context.Context)) error {
	go s.followDaemon(os.Stdin)
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig:  goplugin.HandshakeConfig{MagicCookieKey: wire.CookieName, MagicCookieValue: s.kind},
		VersionedPlugins: map[int]goplugin.PluginSet{wire.Version: {s.kind: adapter{register: register}}},
		Logger:           hclog.NewNullLogger(),
		GRPCServer: func(list []grpc.ServerOption) *grpc.Server {
			server := grpc.NewServer(append(list, grpc.MaxRecvMsgSize(wire.MaxMessage),
				grpc.MaxSendMsgSize(wire.MaxResponse),
				grpc.InitialWindowSize(wire.Window), grpc.InitialConnWindowSize(wire.Window))...)
			s.grpc.Store(server)
			return server
		},
	})
	s.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	wait(ctx)
	if s.o.stop == nil || !s.started.Load() {
		return nil
	}
	if err := s.o.stop(ctx); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return nil
}

// start decodes the configuration and starts what the author wants started.
func (s *server) start(ctx context.Context, config []byte) error {
	if err := s.o.decode(config); err != nil {
		return status.Error(codes.InvalidArgument, "config: "+err.Error())
	}
	if s.o.start != nil {
		if err := s.o.start(ctx); err != nil {
			return status.Error(codes.Unavailable, err.Error())
		}
	}
	s.started.Store(true)
	return nil
}

// validate returns the problems of a configuration and starts nothing. A panic is reported by err, not as a problem.
func (s *server) validate(ctx context.Context, config []byte) (wrong, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = status.Error(codes.Internal, s.panicked(v, "validation of its configuration", "").Error())
		}
	}()
	if wrong = s.o.decode(config); wrong == nil && s.o.validate != nil {
		wrong = s.o.validate(ctx)
	}
	return wrong, nil
}

// followDaemon stops the server when the pipe to the daemon is closed, which means that the daemon has ended.
func (s *server) followDaemon(pipe io.Reader) {
	_, _ = io.Copy(io.Discard, pipe)
	s.cancel()
	if server := s.grpc.Load(); server != nil {
		server.Stop()
	}
}

// panicked turns the value of recover into an error. It omits the value, which may contain a secret.
func (s *server) panicked(v any, what, id string) error {
	s.log.Error("plugin panicked", "method", what, "id", id, "value", fmt.Sprint(v), "stack", string(debug.Stack()))
	return fmt.Errorf("the plugin's %s panicked (%T) at %s", what, v, panicLocation())
}

// panicLocation returns where the current panic began, because the log of a process that answers one query is not
// shown.
func panicLocation() string {
	callers := make([]uintptr, 64)
	frames := runtime.CallersFrames(callers[:runtime.Callers(1, callers)])
	for thrown := false; ; {
		frame, more := frames.Next()
		switch {
		case strings.HasPrefix(frame.Function, "runtime."):
			thrown = thrown || frame.Function == "runtime.gopanic"
		case thrown:
			return fmt.Sprintf("%s:%d", filepath.Base(frame.File), frame.Line)
		}
		if !more {
			return "an unknown place"
		}
	}
}

// adapter registers the service with go-plugin's server.
type adapter struct {
	goplugin.NetRPCUnsupportedPlugin
	register func(*grpc.Server)
}

func (a adapter) GRPCServer(_ *goplugin.GRPCBroker, s *grpc.Server) error {
	a.register(s)
	return nil
}

func (adapter) GRPCClient(context.Context, *goplugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errors.New("a plugin has no client")
}
