package host

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hubrelay/hubrelay/plugins/internal/wire"
	driverv1 "github.com/hubrelay/hubrelay/plugins/proto/driver/v1"
	"github.com/hubrelay/hubrelay/relay"
)

// odd is a driver that takes the protocol lightly.
type odd struct {
	driverv1.UnimplementedDriverServer
	goplugin.NetRPCUnsupportedPlugin
	cancels atomic.Int64
	second  chan struct{} // closed by the second Cancel
}

func (o *odd) GRPCServer(_ *goplugin.GRPCBroker, server *grpc.Server) error {
	driverv1.RegisterDriverServer(server, o)
	return nil
}

func (*odd) GRPCClient(context.Context, *goplugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errors.New("no")
}

func serveOdd() {
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: handshakeConfig(os.Getenv(wire.CookieName)), Logger: hclog.NewNullLogger(),
		GRPCServer: goplugin.DefaultGRPCServer,
		Plugins:    goplugin.PluginSet{wire.KindDriver: &odd{second: make(chan struct{})}},
	})
}

func (*odd) Describe(context.Context, *driverv1.DescribeRequest) (*driverv1.DescribeResponse, error) {
	return &driverv1.DescribeResponse{Name: "odd", Steps: []*driverv1.Step{{Id: "copy", Caption: "Copy"}}}, nil
}

func (*odd) Configure(context.Context, *driverv1.ConfigureRequest) (*driverv1.ConfigureResponse, error) {
	return &driverv1.ConfigureResponse{}, nil
}

// Cancel ignores the first call, as if it arrived before its migration.
func (o *odd) Cancel(context.Context, *driverv1.CancelRequest) (*driverv1.CancelResponse, error) {
	if o.cancels.Add(1) == 2 {
		close(o.second)
	}
	return &driverv1.CancelResponse{}, nil
}

func (o *odd) Migrate(r *driverv1.MigrateRequest, stream grpc.ServerStreamingServer[driverv1.MigrateResponse]) error {
	result := driverv1.Outcome_OUTCOME_CANCELLED
	switch r.GetContainer() {
	case "mute":
		return nil
	case "status":
		return status.Error(codes.ResourceExhausted, "no space\nleft")
	case "empty":
		return stream.Send(&driverv1.MigrateResponse{})
	case "new":
		result = 77
	case "overtaken":
		if err := stream.Send(&driverv1.MigrateResponse{
			Event: &driverv1.MigrateResponse_Progress{Progress: &driverv1.Progress{Step: "copy"}},
		}); err != nil {
			return err
		}
		<-o.second
	}
	return stream.Send(&driverv1.MigrateResponse{
		Event: &driverv1.MigrateResponse_Result{Result: &driverv1.Result{Outcome: result}},
	})
}

// Any answer without a result leaves the migration unsettled, and never counts as success.
func TestDriver_AnswerWithoutResultIsIndeterminate(t *testing.T) {
	t.Parallel()
	r := newDriverRig(t, "odd", nil)
	if err := r.configure("a", "b"); err != nil {
		t.Fatal(err)
	}
	for container, want := range map[string]string{
		"mute":    "the driver ended a migration without a result",
		"status":  "the driver returned an error: no space; left",
		"empty":   "unknown outcome 0",
		"new":     "unknown outcome 77",
		"stopped": "the migration was stopped", // without a request to stop
	} {
		says(t, r.migrate(container, "job-1"), true, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := r.begin(ctx, "overtaken", "job-2")
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || relay.IsIndeterminate(err) {
		t.Errorf("cancelled: %v", err)
	}
	if r.count(EventStarted) != 1 {
		t.Errorf("events %v", r.events)
	}
}
