package host

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hubrelay/hubrelay/plugins/internal/wire"
	driverv1 "github.com/hubrelay/hubrelay/plugins/proto/driver/v1"
	"github.com/hubrelay/hubrelay/relay"
)

// The kinds of plugins, as a program finds them in its environment.
const (
	KindSink   = wire.KindSink
	KindDriver = wire.KindDriver
)

// KindOf starts a plugin to find out its kind, and ends it. Anything that is not a driver counts as a sink, because
// running it as a sink shows the error.
func KindOf(ctx context.Context, o Options) (string, error) {
	o.MaxCrashes = 1
	s, err := newSupervisor(o, driverProbe{})
	if err != nil {
		return "", err
	}
	_, err = s.currentSession(ctx)
	late := ctx.Err() // before the plugin is ended, which takes a while
	if closed := s.Close(); closed != nil {
		return "", closed
	}
	switch {
	case err == nil:
		return KindDriver, nil
	case late != nil:
		return "", late
	}
	return KindSink, nil
}

// driverProbe takes whatever serves drivers for one, however it describes itself.
type driverProbe struct{ driverKind }

func (driverProbe) start(ctx context.Context, o *Options, conn *grpc.ClientConn) (callSet, string, error) {
	service := driverv1.NewDriverClient(conn)
	if _, err := service.Describe(ctx, &driverv1.DescribeRequest{}); status.Code(err) == codes.Unimplemented {
		return nil, "", errors.New("the plugin is no driver")
	}
	return newMigrations(service, relay.DriverDescription{}, &serverList{}, o), "", nil
}
