package host

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hubrelay/hubrelay/plugins/internal/wire"
	driverv1 "github.com/hubrelay/hubrelay/plugins/proto/driver/v1"
)

// The kinds of plugins, as programs find them in their environment.
const (
	KindSink   = wire.KindSink
	KindDriver = wire.KindDriver
)

var errNotDriver = errors.New("the plugin is not a driver")

// KindOf starts a plugin to detect its kind, and stops it. Anything that is not a driver counts as a sink, because
// running it as a sink shows the error.
func KindOf(ctx context.Context, o Options) (string, error) {
	err := runQuery(ctx, o, driverKind{}, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := driverv1.NewDriverClient(conn).Describe(ctx, &driverv1.DescribeRequest{})
		if status.Code(err) == codes.Unimplemented {
			return errNotDriver
		}
		return nil // any other error is the error of a driver
	})
	switch {
	case err == nil:
		return KindDriver, nil
	case ctx.Err() != nil:
		return "", ctx.Err()
	}
	return KindSink, nil
}
