package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/plugins/internal/wire"
	"github.com/hubrelay/hubrelay/relay"
)

// startSession starts the plugin and returns when it is ready. After an error, the caller must abandon the returned
// session, which may be nil.
func startSession(ctx context.Context, o *Options, k pluginKind, out *pluginOutput) (*pluginSession, error) {
	ctx, cancel := context.WithTimeout(ctx, o.StartupTimeout)
	defer cancel()
	program, args, err := Resolve(o.Command)
	if err != nil {
		return nil, err
	}
	content, err := o.openProgram(program)
	if err != nil {
		return nil, err
	}
	if content != nil {
		defer func() { _ = content.Close() }()
	}
	folder, err := newSocketDir(o.SocketRoot)
	if err != nil {
		return nil, err
	}
	s := &pluginSession{
		o: o, kind: k, folder: folder, output: out, stdout: out.newLineWriter("stdout"), stderr: out.newLineWriter("stderr"),
	}
	out.takeLastLine() // of the previous run
	s.process = &pluginProcess{
		cmd: exec.Command(program, args...), memoryLimit: o.MemoryLimit, folder: folder.path, output: out,
		exited: make(chan struct{}),
	}
	s.process.cmd.Dir = o.Dir
	if content != nil {
		runContent(s.process.cmd, content)
	}
	if err := s.connect(ctx); err != nil {
		if s.process.pid.Load() == 0 {
			folder.remove()
			return nil, startError(program, err)
		}
		return s, s.startError(ctx, err)
	}
	return s, nil
}

func startError(program string, err error) error {
	if errors.Is(err, exec.ErrNotFound) || strings.Contains(err.Error(), "exec format error") {
		return fmt.Errorf("%s is not a program for this machine: %w", program, err)
	}
	return err
}

// connect runs the handshake and the first calls, until the plugin can be used.
func (s *pluginSession) connect(ctx context.Context) error {
	s.client = goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig:  handshakeConfig(s.kind.kindName()),
		Plugins:          goplugin.PluginSet{s.kind.kindName(): connection{}},
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		AutoMTLS:         !s.o.PlainSocket,
		SkipHostEnv:      true,
		StartTimeout:     s.o.StartupTimeout + exitTimeout, // ctx ends first
		Logger:           hclog.NewNullLogger(),
		SyncStdout:       s.stdout,
		SyncStderr:       s.stderr,
		UnixSocketConfig: &goplugin.UnixSocketConfig{TempDir: s.folder.path},
		GRPCDialOptions: []grpc.DialOption{
			grpc.WithInitialWindowSize(wire.Window), grpc.WithInitialConnWindowSize(wire.Window),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(wire.MaxResponse),
				grpc.MaxCallSendMsgSize(wire.MaxMessage)),
			grpc.WithChainStreamInterceptor(rejectBroker),
		},
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, _ string) (runner.Runner, error) {
			s.process.cmd.Env = append(append([]string{}, s.o.Env...), cmd.Env...)
			return s.process, nil
		},
	})
	if err := s.dial(ctx); err != nil {
		return err
	}
	if err := s.waitServing(ctx); err != nil {
		return fmt.Errorf("the health check of the plugin failed: %w", err)
	}
	l, version, err := s.kind.start(ctx, s.o, s.conn)
	if err != nil {
		return s.beginError(err)
	}
	s.calls = l
	s.o.Log.Info("plugin started", "pid", s.process.pid.Load(), "version", relay.Truncate(version, 60))
	return nil
}

// rejectBroker rejects the broker stream of go-plugin, which the host does not use. go-plugin starts a goroutine for each of
// its messages, so a plugin could fill the memory of the relay.
func rejectBroker(
	ctx context.Context, d *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, o ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if strings.HasPrefix(method, "/plugin.GRPCBroker/") {
		return nil, status.Error(codes.Unimplemented, "the host has no broker")
	}
	return open(ctx, d, conn, method, o...)
}

// dial runs the handshake of go-plugin, which does not take a context.
func (s *pluginSession) dial(ctx context.Context) error {
	done := make(chan error, 1)
	go func() {
		protocol, err := s.client.Client()
		if err != nil {
			done <- err
			return
		}
		raw, err := protocol.Dispense(s.kind.kindName())
		if err == nil {
			s.conn, _ = raw.(*grpc.ClientConn)
		}
		done <- err
	}()
	err, late := await.Value(ctx, done)
	if late != nil {
		_ = s.process.Kill(context.Background())
		return errors.Join(late, <-done)
	}
	return err
}

// waitServing polls until the plugin is healthy, because some plugins report their address before they serve.
func (s *pluginSession) waitServing(ctx context.Context) error {
	health := grpc_health_v1.NewHealthClient(s.conn)
	for {
		err := checkServing(ctx, health, s.o.StartupTimeout)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-s.process.exited:
			return err
		case <-ctx.Done():
			return err
		}
	}
}

// beginError describes the response of the plugin to the first calls. Other errors are returned unchanged.
func (s *pluginSession) beginError(err error) error {
	response, ok := status.FromError(err)
	text := statusText(response)
	switch {
	case !ok:
		return err
	case response.Code() == codes.InvalidArgument:
		return &rejectedError{rejectsConfigText, text}
	case response.Code() == codes.Unimplemented:
		return &answeredError{
			fmt.Errorf("the plugin does not serve %s: it is a plugin for something else", s.kind.serviceName()),
		}
	}
	return fmt.Errorf("the plugin cannot start: %s", text)
}

// answeredError is an error that the plugin returned while it continues to run.
type answeredError struct{ error }

// statusText returns the message of a status in one line.
func statusText(response *status.Status) string {
	text := strings.ToValidUTF8(relay.Truncate(response.Message(), 1<<10), "�")
	return strings.ReplaceAll(strings.TrimSpace(text), "\n", "; ")
}

// rejectedError reports that the plugin rejected its input.
type rejectedError struct{ what, text string }

const rejectsConfigText = "the plugin rejects its configuration"

func (e *rejectedError) Error() string { return e.what + ": " + e.text }

// ErrNoCertificate is the reason why a plugin without TLS does not start if TLS is required.
var ErrNoCertificate = errors.New("the plugin offers no certificate: if it cannot use TLS, set tls: false")

// startError explains a failed start by the behavior of the process.
func (s *pluginSession) startError(ctx context.Context, err error) error {
	var alive *answeredError
	if IsRejected(err) || errors.As(err, &alive) {
		return err
	}
	if refused := s.process.rejectError(); refused != nil {
		return refused
	}
	line, said := s.process.handshakeLine()
	parts := strings.Split(line, "|")
	switch {
	case said && !isHandshake(parts):
		return fmt.Errorf("the plugin wrote %q to its standard output instead of the handshake "+
			"(1|1|unix|…|grpc): print nothing before it",
			s.output.secrets.Prefix(line, 80))
	case said && parts[1] != strconv.Itoa(wire.Version):
		return fmt.Errorf("the plugin has version %s of the protocol and this relay version %d: build it with "+
			"the SDK of this version",
			s.output.secrets.Prefix(parts[1], 20), wire.Version)
	}
	late := ctx.Err() != nil
	if !late {
		// The connection ends before the exit is visible.
		s.waitAtMost(s.process.exited, exitTimeout)
	}
	ended, byUs := s.process.exitInfo()
	switch {
	case ended != "" && !byUs:
		return &sessionError{
			event: EventExited, text: "the plugin exited " + ended + " before it was ready" + s.lastOutput(), isEarly: true,
		}
	case !said && late:
		return fmt.Errorf("the plugin did not write its handshake within %s (startup_timeout)", s.o.StartupTimeout)
	case s.process.hasClosedStdout():
		return errors.New("the plugin was killed, or closed its standard output, before its handshake (1|1|unix|…|grpc)")
	case said && !s.o.PlainSocket && (len(parts) < 6 || parts[5] == ""):
		return ErrNoCertificate
	case late:
		return fmt.Errorf("the plugin was not ready within %s (startup_timeout): %w", s.o.StartupTimeout, err)
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	return errors.New(relay.Truncate(first, 300))
}

func isHandshake(parts []string) bool {
	if len(parts) < 4 || parts[0] != strconv.Itoa(goplugin.CoreProtocolVersion) {
		return false
	}
	_, err := strconv.Atoi(parts[1])
	return err == nil
}

// killProcess kills a process that did not become ready or is no longer needed.
func (s *pluginSession) killProcess() {
	if s == nil {
		return
	}
	_ = s.process.Kill(context.Background())
	s.waitAtMost(s.process.exited, exitTimeout)
	s.closeClient()
}

func isOutOfMemory(line string) bool {
	for _, word := range []string{"out of memory", "MemoryError", "annot allocate memory", "failed to allocate"} {
		if bytes.Contains([]byte(line), []byte(word)) {
			return true
		}
	}
	return false
}

// connection makes go-plugin return the gRPC connection.
type connection struct {
	goplugin.NetRPCUnsupportedPlugin
}

func (connection) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}

func (connection) GRPCServer(*goplugin.GRPCBroker, *grpc.Server) error {
	return errors.New("the host serves no plugin")
}
