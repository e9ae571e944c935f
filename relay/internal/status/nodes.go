package status

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
)

const (
	// recordInterval is the interval at which a node renews its record.
	recordInterval = 5 * time.Second
	// recordTTL is longer than the interval, so a record survives a failed renewal.
	recordTTL = 3 * recordInterval
)

// nodeRecord is the record of a node in Redis.
type nodeRecord struct {
	adminapi.Node

	Sinks       []string `json:"sinks"` // nil if they are not known
	FailedSinks []string `json:"failed_sinks"`
}

// Run renews the record of this node until ctx ends, and after each change of its sinks.
func (r *Reporter) Run(ctx context.Context) error {
	for {
		record, err := json.Marshal(nodeRecord{r.describeNode(ctx), r.opts.ActiveSinks(), r.opts.FailedSinks()})
		if err != nil {
			return err
		}
		// While Redis is unreachable, other components log it.
		_ = r.opts.Leases.StoreRecord(ctx, r.opts.Node, record, recordTTL)
		select {
		case <-ctx.Done():
			return nil
		case <-r.opts.ActiveSinksChanged:
		case <-time.After(recordInterval):
		}
	}
}

func (r *Reporter) describeNode(ctx context.Context) adminapi.Node {
	o := &r.opts
	_, queued := o.Clients.QueueStats()
	n := adminapi.Node{
		Name: o.Node, Host: o.Host, Version: o.Version, StartedAt: o.StartedAt.UTC().Truncate(time.Millisecond),
		ConfigWarning: o.ConfigWarning(), Clients: o.Clients.Clients(), QueuedBytes: queued,
		SeenAt: time.Now().UTC().Truncate(time.Millisecond),
	}
	if err := o.CheckReady(ctx); err != nil {
		n.NotReady = err.Error()
	}
	return n
}

// ListNodes returns a page of the nodes that are running, in the order of their numbers. It is at most a second old. An error
// means that Redis is unreachable.
func (r *Reporter) ListNodes(ctx context.Context, request adminapi.PageRequest) (adminapi.Page[adminapi.Node], error) {
	records, err := r.cachedNodes(ctx)
	list := make([]adminapi.Node, len(records))
	for i := range records {
		list[i] = records[i].Node
	}
	return adminapi.SelectPage(list, request, func(n adminapi.Node) string { return n.Name }, compareNodes), err
}

// OtherNodesWithSink returns the names of other nodes that have a sink, are still stopping it or recently did. A node
// without a record is one of them, because its sinks are not known.
func (r *Reporter) OtherNodesWithSink(ctx context.Context, sink string) ([]string, error) {
	records, err := r.readNodes(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range records {
		if n := &records[i]; n.Name != r.opts.Node && (n.Sinks == nil || slices.Contains(n.Sinks, sink)) {
			names = append(names, records[i].Name)
		}
	}
	return names, nil
}

// SetOtherNodes sets the names of the other nodes that neither have a configured sink nor are still stopping it, and of those on
// which it has failed. They are at most a second old, because operators watch the list of sinks.
func (r *Reporter) SetOtherNodes(ctx context.Context, sinks []adminapi.Sink) error {
	records, err := r.cachedNodes(ctx)
	for i := range records {
		n := &records[i]
		if n.Name == r.opts.Node || n.Sinks == nil {
			continue
		}
		for i := range sinks {
			s := &sinks[i]
			switch {
			case !s.Configured:
			case !slices.Contains(n.Sinks, s.Name):
				s.MissingOn = append(s.MissingOn, n.Name)
			case slices.Contains(n.FailedSinks, s.Name):
				s.FailedOn = append(s.FailedOn, n.Name)
			}
		}
	}
	return err
}

// compareNodes compares names such as node-2 and node-10 by their numbers.
func compareNodes(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) }

func (r *Reporter) cachedNodes(ctx context.Context) ([]nodeRecord, error) {
	return r.nodes.get(func() ([]nodeRecord, error) { return r.readNodes(ctx) })
}

func (r *Reporter) readNodes(ctx context.Context) ([]nodeRecord, error) {
	names, err := r.opts.Leases.ListNodes(ctx)
	if err != nil {
		return nil, err
	}
	records, err := r.opts.Leases.LoadRecords(ctx, names)
	if err != nil {
		return nil, err
	}
	nodes := make([]nodeRecord, len(names))
	for i, name := range names {
		if name == r.opts.Node {
			nodes[i] = nodeRecord{Node: r.describeNode(ctx)}
		} else if json.Unmarshal(records[i], &nodes[i]) != nil {
			nodes[i] = nodeRecord{Node: adminapi.Node{Name: name}} // it has just started, is of an earlier build, or Redis is full
		}
	}
	return nodes, nil
}
