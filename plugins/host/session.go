package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/hubrelay/hubrelay/plugins/internal/wire"
)

const (
	// The time that a plugin has for each step of a shutdown.
	drainTime       = time.Second
	shutdownTimeout = 3 * time.Second
	// exitTimeout is the time within which a killed process must end, and within which an exit must be visible after
	// the connection ended.
	exitTimeout = time.Second
	// hangCheckInterval is the interval of checks for attempts that should have ended.
	hangCheckInterval = 500 * time.Millisecond
	// maxFailedHealthChecks is the maximum number of consecutive failed health checks.
	maxFailedHealthChecks = 2
)

// pluginSession is one run of a plugin that was started and is ready.
type pluginSession struct {
	o       *Options
	kind    pluginKind
	process *pluginProcess
	client  *goplugin.Client
	conn    *grpc.ClientConn
	calls   callSet
	folder  *socketDir
	output  *pluginOutput
	// stdout and stderr get the output of a Go plugin that go-plugin forwards.
	stdout, stderr *lineWriter
}

// pluginKind contains the differences between the kinds of plugins.
type pluginKind interface {
	// kindName returns the name of the kind in the handshake, and service the full name of its gRPC service.
	kindName() string
	serviceName() string
	// start makes a plugin that has started ready for use, and returns its own version.
	start(ctx context.Context, o *Options, conn *grpc.ClientConn) (callSet, string, error)
	// crashAdvice returns what to do after too many crashes, and the consequence until then.
	crashAdvice() (remedy, consequence string)
}

// callSet contains the calls between the host and a running plugin.
type callSet interface {
	// done receives one error when the plugin ends the link by itself. It is nil if the kind has no link.
	done() <-chan error
	// hangError returns the reason why the plugin is considered hung, or nil.
	hangError(now time.Time) error
	// drain lets the plugin finish its work without accepting more. The returned channel is closed at the end.
	drain() <-chan struct{}
	// failAll ends what is left with err, and everything later.
	failAll(err error)
}

// sessionError is the reason why a session ended, or did not start.
type sessionError struct {
	event Event
	text  string
	// isEarly means that the plugin was not ready yet.
	isEarly bool
}

func (e *sessionError) Error() string { return e.text }

// watchProcess monitors the plugin until it ends, which is an error, or ctx ends.
func (s *pluginSession) watchProcess(ctx context.Context) error {
	unhealthy := make(chan error, 1)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go s.checkHealth(watching, unhealthy)
	hang := time.NewTicker(hangCheckInterval)
	defer hang.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.process.exited:
			return s.exitError()
		case err := <-s.calls.done():
			return s.linkError(err)
		case err := <-unhealthy:
			return &sessionError{
				event: EventHung, text: fmt.Sprintf("no response to %d health checks within %s each, the plugin was killed: %v",
					maxFailedHealthChecks, s.o.HealthTimeout, err),
			}
		case now := <-hang.C:
			if err := s.calls.hangError(now); err != nil {
				return &sessionError{event: EventHung, text: err.Error()}
			}
		}
	}
}

// linkError waits briefly for the exit that may have ended the link.
func (s *pluginSession) linkError(err error) error {
	s.waitAtMost(s.process.exited, exitTimeout)
	if how, _ := s.process.exitInfo(); how != "" {
		return s.exitError()
	}
	return &sessionError{event: EventExited, text: err.Error()}
}

func (s *pluginSession) exitError() error {
	how, _ := s.process.exitInfo()
	return &sessionError{event: EventExited, text: "the plugin exited " + how + s.lastOutput()}
}

// lastOutput returns the last output of the plugin for an error.
func (s *pluginSession) lastOutput() string {
	last := s.output.takeLastLine()
	if last == "" {
		return ""
	}
	if s.o.MemoryLimit > 0 && isOutOfMemory(last) {
		return fmt.Sprintf(" (memory_limit is %d bytes): %s", s.o.MemoryLimit, last)
	}
	return ": " + last
}

// checkHealth returns an error when the health check of the plugin fails several times in a row.
func (s *pluginSession) checkHealth(ctx context.Context, unhealthy chan<- error) {
	health := grpc_health_v1.NewHealthClient(s.conn)
	tick := time.NewTicker(s.o.HealthInterval)
	defer tick.Stop()
	for missed := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := checkServing(ctx, health, s.o.HealthTimeout)
		if err == nil {
			missed = 0
			continue
		}
		if missed++; missed >= maxFailedHealthChecks && ctx.Err() == nil {
			unhealthy <- err
			return
		}
	}
}

func checkServing(ctx context.Context, health grpc_health_v1.HealthClient, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	response, err := health.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: goplugin.GRPCServiceName})
	if err != nil {
		return errors.New(status.Convert(err).Message())
	}
	if response.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("its status is %s", response.GetStatus())
	}
	return nil
}

// stop ends the process. A graceful stop lets the plugin finish its calls, then requests its end, then kills it. Calls
// without a response fail with cause.
func (s *pluginSession) stop(cause error, graceful bool) {
	if graceful {
		s.waitAtMost(s.calls.drain(), drainTime)
		asking, stop := context.WithTimeout(context.Background(), shutdownTimeout)
		go s.requestShutdown(asking)
		s.waitAtMost(s.process.exited, shutdownTimeout)
		stop()
		if how, _ := s.process.exitInfo(); how == "" {
			s.o.Observe(EventKilled)
			s.o.Log.Warn("plugin did not end in time, killing it", "timeout", shutdownTimeout)
		}
	}
	_ = s.process.Kill(context.Background())
	s.waitAtMost(s.process.exited, exitTimeout)
	s.calls.failAll(cause)
	s.closeClient()
}

func (s *pluginSession) waitAtMost(what <-chan struct{}, most time.Duration) {
	last := time.NewTimer(most)
	defer last.Stop()
	select {
	case <-what:
	case <-s.process.exited:
	case <-last.C:
	}
}

// requestShutdown requests the end of the plugin in both ways that plugins support.
func (s *pluginSession) requestShutdown(ctx context.Context) {
	_ = s.process.stdin.Close()
	_ = s.conn.Invoke(ctx, "/plugin.GRPCController/Shutdown", &emptypb.Empty{}, &emptypb.Empty{})
}

// closeClient releases the resources of go-plugin. Its Kill may block forever, so closeClient does not wait for it. The
// process has already ended.
func (s *pluginSession) closeClient() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.client.Kill()
	}()
	last := time.NewTimer(exitTimeout)
	defer last.Stop()
	select {
	case <-done:
	case <-last.C:
	}
	s.stdout.close()
	s.stderr.close()
	s.folder.remove()
}

// handshakeConfig returns the values that go-plugin compares.
func handshakeConfig(kind string) goplugin.HandshakeConfig {
	return goplugin.HandshakeConfig{
		ProtocolVersion: wire.Version, MagicCookieKey: wire.CookieName, MagicCookieValue: kind,
	}
}
