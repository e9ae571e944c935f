package daemon

import (
	"context"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay/internal/delivery"
	"github.com/hubrelay/hubrelay/relay/internal/status"
)

// sinks implements [adminserver.Sinks].
type sinks struct {
	*delivery.Service

	nodes *status.Nodes
}

// ListSinks also names the other nodes that do not have a sink, or on which it has failed.
func (s sinks) ListSinks(ctx context.Context, r adminapi.PageRequest) (adminapi.Page[adminapi.Sink], error) {
	page, err := s.Service.ListSinks(ctx, r)
	if err != nil {
		return page, err
	}
	return page, s.nodes.SetOtherNodes(ctx, page.Data)
}

// ShowSink also names the other nodes that do not have the sink, or on which it has failed.
func (s sinks) ShowSink(ctx context.Context, name string) (adminapi.Sink, error) {
	sink, err := s.Service.ShowSink(ctx, name)
	if err != nil {
		return sink, err
	}
	list := []adminapi.Sink{sink}
	err = s.nodes.SetOtherNodes(ctx, list)
	return list[0], err
}
