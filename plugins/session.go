package plugins

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
	drainTime = time.Second
	askTime   = 3 * time.Second
	// endTime is how long a killed process may take to be gone, and how long an exit may show behind the connection's end.
	endTime = time.Second
	// hangTick is how often attempts are looked at that should have ended.
	hangTick = 500 * time.Millisecond
	// missedHealth is how many health checks in a row may fail.
	missedHealth = 2
)

// session is one run of a plugin that was started and is ready.
type session struct {
	o       *Options
	kind    kind
	process *process
	client  *goplugin.Client
	conn    *grpc.ClientConn
	link    link
	folder  *socketFolder
	output  *output
}

// kind is what distinguishes the kinds of plugins.
type kind interface {
	// name is the kind's name in the handshake, service the full name of what such a plugin serves.
	name() string
	service() string
	// begin makes a plugin that has started ready for use, and returns its own version.
	begin(ctx context.Context, o *Options, conn *grpc.ClientConn) (link, string, error)
	// lost says what to do when the plugin has crashed too often, and what that means until then.
	lost() (remedy, consequence string)
}

// link is what goes on between the host and a plugin while it runs.
type link interface {
	// over gives one error when the plugin has ended the link by itself; it is nil where that cannot be.
	over() <-chan error
	// hung says why the plugin must be taken for hung, nil where it need not.
	hung(now time.Time) error
	// drain lets the plugin finish what it has and take nothing more. What it returns is closed when that is done.
	drain() <-chan struct{}
	// fail ends what is left with err, and everything later.
	fail(err error)
}

// endError says why a session ended.
type endError struct {
	event Event
	text  string
}

func (e *endError) Error() string { return e.text }

// run watches over the plugin until it ends, which is an error, or ctx ends.
func (s *session) run(ctx context.Context) error {
	unhealthy := make(chan error, 1)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go s.checkHealth(watching, unhealthy)
	hang := time.NewTicker(hangTick)
	defer hang.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.process.exited:
			return s.exit()
		case err := <-s.link.over():
			return s.broken(err)
		case err := <-unhealthy:
			return &endError{EventHung, fmt.Sprintf("the plugin did not answer %d health checks in %s each and was killed: %v", missedHealth, s.o.HealthTimeout, err)}
		case now := <-hang.C:
			if err := s.link.hung(now); err != nil {
				return &endError{EventHung, err.Error()}
			}
		}
	}
}

// broken waits a moment for the exit that may be behind the end of the link.
func (s *session) broken(err error) error {
	s.await(s.process.exited, endTime)
	if how, _ := s.process.ended(); how != "" {
		return s.exit()
	}
	return &endError{EventExited, err.Error()}
}

func (s *session) exit() error {
	how, _ := s.process.ended()
	return &endError{EventExited, "the plugin exited " + how + s.words()}
}

// words is what the plugin last wrote, for an error. It reads better than nothing, and is in the log anyway.
func (s *session) words() string {
	last := s.output.lastWords()
	if last == "" {
		return ""
	}
	if s.o.MemoryLimit > 0 && isMemory(last) {
		return fmt.Sprintf(" (memory_limit is %d bytes): %s", s.o.MemoryLimit, last)
	}
	return ": " + last
}

// checkHealth reports when the plugin's health check fails a few times in a row.
func (s *session) checkHealth(ctx context.Context, unhealthy chan<- error) {
	health := grpc_health_v1.NewHealthClient(s.conn)
	tick := time.NewTicker(s.o.HealthInterval)
	defer tick.Stop()
	for missed := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := serving(ctx, health, s.o.HealthTimeout)
		if err == nil {
			missed = 0
			continue
		}
		if missed++; missed >= missedHealth && ctx.Err() == nil {
			unhealthy <- err
			return
		}
	}
}

func serving(ctx context.Context, health grpc_health_v1.HealthClient, timeout time.Duration) error {
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

// end ends the process: it lets the plugin answer what it has, asks it to end, and kills it. What nobody has answered by
// then fails with cause. After a crash nothing is asked.
func (s *session) end(cause error, graceful bool) {
	if graceful {
		s.await(s.link.drain(), drainTime)
		asking, stop := context.WithTimeout(context.Background(), askTime)
		go s.ask(asking)
		s.await(s.process.exited, askTime)
		stop()
		if how, _ := s.process.ended(); how == "" {
			s.o.Observe(EventKilled)
			s.o.Log.Warn("the plugin did not end when it was asked to, and is killed", "after", askTime)
		}
	}
	_ = s.process.Kill(context.Background())
	s.await(s.process.exited, endTime)
	s.link.fail(cause)
	s.release()
}

func (s *session) await(what <-chan struct{}, most time.Duration) {
	last := time.NewTimer(most)
	defer last.Stop()
	select {
	case <-what:
	case <-s.process.exited:
	case <-last.C:
	}
}

// ask tells the plugin to end in the two ways that plugins know.
func (s *session) ask(ctx context.Context) {
	_ = s.process.stdin.Close()
	_ = s.conn.Invoke(ctx, "/plugin.GRPCController/Shutdown", &emptypb.Empty{}, &emptypb.Empty{})
}

// release frees what go-plugin holds. Its Kill never returns for some processes, which are gone by now; still, nobody
// waits for it.
func (s *session) release() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.client.Kill()
	}()
	last := time.NewTimer(endTime)
	defer last.Stop()
	select {
	case <-done:
	case <-last.C:
	}
	s.folder.remove()
}

// handshake is what go-plugin compares.
func handshake(kind string) goplugin.HandshakeConfig {
	return goplugin.HandshakeConfig{ProtocolVersion: wire.Version, MagicCookieKey: wire.CookieName, MagicCookieValue: kind}
}
