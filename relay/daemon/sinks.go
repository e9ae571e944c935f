package daemon

import (
	"context"
	"strings"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery"
	"github.com/hubrelay/hubrelay/relay/internal/status"
)

// sinks implements [adminserver.Sinks].
type sinks struct {
	*delivery.Service

	nodes *status.Reporter
}

// ListSinks also names the other nodes that do not have a sink.
func (s sinks) ListSinks(ctx context.Context, r adminapi.PageRequest) (adminapi.Page[adminapi.Sink], error) {
	page, err := s.Service.ListSinks(ctx, r)
	if err != nil {
		return page, err
	}
	return page, s.setMissingOn(ctx, page.Data)
}

// ShowSink also names the other nodes that do not have the sink.
func (s sinks) ShowSink(ctx context.Context, name string) (adminapi.Sink, error) {
	sink, err := s.Service.ShowSink(ctx, name)
	if err != nil {
		return sink, err
	}
	list := []adminapi.Sink{sink}
	err = s.setMissingOn(ctx, list)
	return list[0], err
}

func (s sinks) setMissingOn(ctx context.Context, list []adminapi.Sink) error {
	var names []string
	for i := range list {
		if list[i].Configured {
			names = append(names, list[i].Name)
		}
	}
	missing, err := s.nodes.OtherNodesWithoutSink(ctx, names)
	for i := range list {
		list[i].MissingOn = missing[list[i].Name]
	}
	return err
}

// ForgetSink deletes the data of a sink that no node has configured. Otherwise other nodes would lose later events.
func (s sinks) ForgetSink(ctx context.Context, name string, deadLetters bool) error {
	nodes, err := s.nodes.OtherNodesWithSink(ctx, name)
	if err != nil {
		return err
	}
	if len(nodes) > 0 {
		return relay.NewError(relay.CodeInvalidState, "remove the sink from the configuration of all nodes first, and try again: "+
			strings.Join(nodes, ", ")+" has the sink, is still stopping it, had it a few seconds ago, or has not reported its sinks yet")
	}
	return s.Service.ForgetSink(ctx, name, deadLetters)
}
