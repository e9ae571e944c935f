package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hubrelay/hubrelay/plugins/internal/wire"
	driverv1 "github.com/hubrelay/hubrelay/plugins/proto/driver/v1"
	sinkv1 "github.com/hubrelay/hubrelay/plugins/proto/sink/v1"
	"github.com/hubrelay/hubrelay/relay"
)

// ErrUnsupported reports that a plugin does not implement an optional call.
var ErrUnsupported = errors.New("the plugin does not implement this call")

// Validate starts a plugin to check its configuration, and stops it. It returns the problems of the configuration. The
// error is [ErrUnsupported], or the reason why the plugin did not respond before ctx ended.
func Validate(ctx context.Context, kind string, o Options) ([]relay.FieldError, error) {
	if kind == KindDriver {
		return validate(ctx, o, driverKind{},
			func(ctx context.Context, conn *grpc.ClientConn) ([]*driverv1.Problem, error) {
				response, err := driverv1.NewDriverClient(conn).Validate(ctx, &driverv1.ValidateRequest{Config: o.Config})
				return response.GetProblems(), err
			})
	}
	return validate(ctx, o, sinkKind{}, func(ctx context.Context, conn *grpc.ClientConn) ([]*sinkv1.Problem, error) {
		response, err := sinkv1.NewSinkClient(conn).Validate(ctx, &sinkv1.ValidateRequest{Name: o.Name, Config: o.Config})
		return response.GetProblems(), err
	})
}

func validate[P wire.Problem](
	ctx context.Context, o Options, k pluginKind, rpc func(context.Context, *grpc.ClientConn) ([]P, error),
) ([]relay.FieldError, error) {
	var problems []P
	err := runQuery(ctx, o, k, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		problems, err = rpc(ctx, conn)
		return err
	})
	var refused *rejectedError
	switch {
	case errors.As(err, &refused):
		return []relay.FieldError{{Problem: refused.text}}, nil
	case err != nil:
		return nil, err
	}
	return wire.ToProblems(problems), nil
}

// Explain starts a sink plugin, returns what it would send for a delivery, and stops it. The error is [ErrUnsupported],
// the rejection of the delivery by the plugin ([IsRejected]), or the reason why it did not respond.
func Explain(ctx context.Context, o Options, d relay.Delivery) (relay.Preview, error) {
	var response *sinkv1.ExplainResponse
	err := runQuery(ctx, o, sinkKind{}, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		response, err = sinkv1.NewSinkClient(conn).Explain(ctx, &sinkv1.ExplainRequest{
			Name: o.Name, Config: o.Config, Delivery: wire.FromDelivery(d),
		})
		return err
	})
	if err != nil {
		return relay.Preview{}, err
	}
	return wire.ToExplanation(response), nil
}

// runQuery starts a plugin for one call, and stops it.
func runQuery(ctx context.Context, o Options, k pluginKind, rpc func(context.Context, *grpc.ClientConn) error) error {
	if err := o.setDefaults(); err != nil {
		return err
	}
	q := &query{pluginKind: k, rpc: rpc}
	began := time.Now()
	s, err := startSession(ctx, &o, q, newOutput(o.Log, o.envSecrets(), o.Observe))
	late := ctx.Err() != nil // before stopping the plugin, which takes a while
	s.killProcess()
	var ended *sessionError
	switch {
	case err == nil:
		return q.response
	case late && !errors.As(err, &ended):
		return fmt.Errorf("the plugin did not respond within %s", time.Since(began).Round(100*time.Millisecond))
	}
	return err
}

// query is a call to a plugin that is not configured.
type query struct {
	pluginKind
	rpc      func(context.Context, *grpc.ClientConn) error
	response error
}

// start makes the call. A rejection is a result, too.
func (q *query) start(ctx context.Context, _ *Options, conn *grpc.ClientConn) (callSet, string, error) {
	err := q.rpc(ctx, conn)
	switch response := status.Convert(err); {
	case response.Code() == codes.Unimplemented && !strings.Contains(response.Message(), "unknown service"):
		q.response = ErrUnsupported
	case response.Code() == codes.InvalidArgument:
		q.response = &rejectedError{"the plugin cannot send the delivery", statusText(response)}
	default:
		return nil, "", err
	}
	return nil, "", nil
}
