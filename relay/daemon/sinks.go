package daemon

import (
	"context"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery"
	"github.com/hubrelay/hubrelay/relay/internal/status"
)

// sinks implements [adminserver.Sinks].
type sinks struct {
	*delivery.Service

	nodes *status.Reporter
}

// ForgetSink deletes the data of a sink that no node has configured. Otherwise other nodes would lose later events.
func (s sinks) ForgetSink(ctx context.Context, name string, deadLetters bool) error {
	nodes, err := s.nodes.OtherNodesWithSink(ctx, name)
	if err != nil {
		return err
	}
	if len(nodes) > 0 {
		return relay.NewError(relay.CodeInvalidState, "the sink is configured on "+strings.Join(nodes, ", ")+
			", or was a few seconds ago, or the node has not reported its sinks yet; remove the sink from the configuration of "+
			"all nodes first")
	}
	return s.Service.ForgetSink(ctx, name, deadLetters)
}
