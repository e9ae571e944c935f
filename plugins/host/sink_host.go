// Package host runs plugins: sinks and migration drivers in separate processes. It starts a program with
// hashicorp/go-plugin, supervises it, and restarts it after a crash.
//
// A [Host] is one sink, a [Driver] is one driver, and [Config] is the configuration of either. The protocols are in
// plugins/proto, and authors of plugins use plugins/sdk. Retries of deliveries and migrations do not belong here.
package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/hubrelay/hubrelay/plugins/internal/wire"
	sinkv1 "github.com/hubrelay/hubrelay/plugins/proto/sink/v1"
	"github.com/hubrelay/hubrelay/relay"
)

// Host runs one sink plugin. It starts the process with the first delivery or by Start, and restarts it after a crash,
// until Close. Its methods may be called concurrently. A delivery is tried once. Deliveries in flight fail when the
// plugin ends, and may be tried again.
type Host struct{ *supervisor }

// New returns the host of one sink. It neither starts nor checks the program.
func New(o Options) (*Host, error) {
	s, err := newSupervisor(o, sinkKind{})
	if err != nil {
		return nil, err
	}
	return &Host{s}, nil
}

// ReportConcurrency lets the host call report with the number of attempts that the plugin can make at once: those in progress and
// its credits. It is 0 while the plugin starts or waits for its next start, and 1 if only a delivery starts it. ReportConcurrency must
// be called before Start and Deliver.
func (h *Host) ReportConcurrency(report func(n int)) {
	h.o.reportConcurrency = report
	report(1)
}

// Deliver makes one attempt. It waits for a plugin that is starting or will restart shortly. If the plugin is not running, the
// error is marked by [relay.Postpone], because one account can crash it for all. An error marked by [relay.Gone] means that it
// has crashed too often.
func (h *Host) Deliver(ctx context.Context, d relay.Delivery) error {
	s, err := h.currentSession(ctx)
	var gaveUp *gaveUpError
	var notRunning *notRunningError
	switch {
	case errors.As(err, &gaveUp):
		return relay.Gone(err)
	case errors.As(err, &notRunning):
		return relay.Postpone(err, time.Until(notRunning.Next))
	case err != nil:
		return relay.Postpone(err, 0)
	}
	stream, ok := s.calls.(*deliveryStream)
	if !ok {
		return fmt.Errorf("the plugin does not support deliveries, but has a %T", s.calls)
	}
	return stream.deliverAttempt(ctx, d)
}

// Answered reports whether the result of Deliver or Migrate comes from the plugin. Otherwise there was no response.
func Answered(err error) bool {
	var said *wire.Error
	return err == nil || errors.As(err, &said)
}

// sinkKind runs a plugin as a sink.
type sinkKind struct{}

func (sinkKind) kindName() string { return wire.KindSink }

func (sinkKind) serviceName() string { return sinkv1.Sink_ServiceDesc.ServiceName }

// start opens the stream of deliveries, and returns when the plugin has given its first credit.
func (sinkKind) start(ctx context.Context, o *Options, conn *grpc.ClientConn) (callSet, string, error) {
	service := sinkv1.NewSinkClient(conn)
	response, err := service.Configure(ctx, &sinkv1.ConfigureRequest{Name: o.Name, Config: o.Config})
	if err != nil {
		return nil, "", err
	}
	streaming, cancel := context.WithCancel(context.Background())
	w, err := service.Deliver(streaming, grpc.MaxCallRecvMsgSize(wire.MaxAckMessage))
	if err != nil {
		cancel()
		return nil, "", fmt.Errorf("open the stream of deliveries: %w", err)
	}
	s := newStream(w, cancel, o)
	go s.run()
	select {
	case <-s.ready:
		return s, response.GetVersion(), nil
	case err = <-s.end:
	case <-ctx.Done():
		err = errors.New("the plugin granted no credit for deliveries")
	}
	cancel()
	return nil, "", err
}

func (sinkKind) crashAdvice() (remedy, consequence string) {
	return "fix it, then resume the sink", "the next delivery disables its sink, which keeps its backlog"
}
