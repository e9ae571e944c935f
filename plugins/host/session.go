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
	// exitTimeout is how long a killed process may take to be gone, and how long an exit may show behind the connection's end.
	exitTimeout = time.Second
	// hangCheckInterval is how often attempts are looked at that should have ended.
	hangCheckInterval = 500 * time.Millisecond
	// maxFailedHealthChecks is how many health checks in a row may fail.
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
}

// pluginKind is what distinguishes the kinds of plugins.
type pluginKind interface {
	// name is the kind's name in the handshake, service the full name of what such a plugin serves.
	name() string
	service() string
	// start makes a plugin that has started ready for use, and returns its own version.
	start(ctx context.Context, o *Options, conn *grpc.ClientConn) (callSet, string, error)
	// crashAdvice says what to do when the plugin has crashed too often, and what that means until then.
	crashAdvice() (remedy, consequence string)
}

// callSet is what goes on between the host and a plugin while it runs.
type callSet interface {
	// done gives one error when the plugin has ended the link by itself; it is nil where that cannot be.
	done() <-chan error
	// hangError says why the plugin must be taken for hung, nil where it need not.
	hangError(now time.Time) error
	// drain lets the plugin finish what it has and take nothing more. What it returns is closed when that is done.
	drain() <-chan struct{}
	// failAll ends what is left with err, and everything later.
	failAll(err error)
}

// sessionError says why a session ended.
type sessionError struct {
	event Event
	text  string
}

func (e *sessionError) Error() string { return e.text }

// watch watches over the plugin until it ends, which is an error, or ctx ends.
func (s *pluginSession) watch(ctx context.Context) error {
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
			return &sessionError{EventHung, fmt.Sprintf("the plugin did not answer %d health checks in %s each and was killed: %v", maxFailedHealthChecks, s.o.HealthTimeout, err)}
		case now := <-hang.C:
			if err := s.calls.hangError(now); err != nil {
				return &sessionError{EventHung, err.Error()}
			}
		}
	}
}

// linkError waits a moment for the exit that may be behind the end of the link.
func (s *pluginSession) linkError(err error) error {
	s.waitAtMost(s.process.exited, exitTimeout)
	if how, _ := s.process.exitInfo(); how != "" {
		return s.exitError()
	}
	return &sessionError{EventExited, err.Error()}
}

func (s *pluginSession) exitError() error {
	how, _ := s.process.exitInfo()
	return &sessionError{EventExited, "the plugin exited " + how + s.lastOutput()}
}

// lastOutput is what the plugin last wrote, for an error. It reads better than nothing, and is in the log anyway.
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

// checkHealth reports when the plugin's health check fails a few times in a row.
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
	answer, err := health.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: goplugin.GRPCServiceName})
	if err != nil {
		return errors.New(status.Convert(err).Message())
	}
	if answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("it says that it is %s", answer.GetStatus())
	}
	return nil
}

// stop ends the process: it lets the plugin answer what it has, asks it to end, and kills it. What nobody has answered by
// then fails with cause. After a crash nothing is asked.
func (s *pluginSession) stop(cause error, graceful bool) {
	if graceful {
		s.waitAtMost(s.calls.drain(), drainTime)
		asking, stop := context.WithTimeout(context.Background(), shutdownTimeout)
		go s.requestShutdown(asking)
		s.waitAtMost(s.process.exited, shutdownTimeout)
		stop()
		if how, _ := s.process.exitInfo(); how == "" {
			s.o.Observe(EventKilled)
			s.o.Log.Warn("the plugin did not end when it was asked to, and is killed", "after", shutdownTimeout)
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

// requestShutdown tells the plugin to end in the two ways that plugins know.
func (s *pluginSession) requestShutdown(ctx context.Context) {
	_ = s.process.stdin.Close()
	_ = s.conn.Invoke(ctx, "/plugin.GRPCController/Shutdown", &emptypb.Empty{}, &emptypb.Empty{})
}

// closeClient frees what go-plugin holds. Its Kill never returns for some processes, which are gone by now; still, nobody
// waits for it.
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
	s.folder.remove()
}

// handshakeConfig is what go-plugin compares.
func handshakeConfig(kind string) goplugin.HandshakeConfig {
	return goplugin.HandshakeConfig{ProtocolVersion: wire.Version, MagicCookieKey: wire.CookieName, MagicCookieValue: kind}
}
