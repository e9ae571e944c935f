package status

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay/internal/lease"
)

const (
	// recordInterval is the interval at which a node renews its record.
	recordInterval = 5 * time.Second
	// recordTTL is longer than the interval, so a record survives a failed renewal.
	recordTTL = 3 * recordInterval
)

// Nodes are the nodes of the relay, with the records that they keep in Redis. It may be used concurrently.
type Nodes struct {
	leases  *lease.Manager
	self    string
	records fresh[[]nodeRecord]
}

// NewNodes returns the nodes. self is the name of this node.
func NewNodes(leases *lease.Manager, self string) *Nodes { return &Nodes{leases: leases, self: self} }

// nodeRecord is the record of a node in Redis.
type nodeRecord struct {
	adminapi.Node

	Sinks       []string `json:"sinks"` // nil if they are not known
	FailedSinks []string `json:"failed_sinks"`
}

// hasSink reports whether a node has a sink, or may have it: its sinks are not known if it has just started, or if Redis is full.
func (n *nodeRecord) hasSink(sink string) bool {
	return n.Sinks == nil || slices.Contains(n.Sinks, sink)
}

func (n *nodeRecord) hasFailedSink(sink string) bool { return slices.Contains(n.FailedSinks, sink) }

// WorksElsewhere reports whether another node has a sink that has not failed there. Records are a few seconds old, and that of a
// killed node up to fifteen.
func (n *Nodes) WorksElsewhere(ctx context.Context, sink string) (bool, error) {
	others, err := n.readOthers(ctx)
	return slices.ContainsFunc(others, func(o nodeRecord) bool { return o.hasSink(sink) && !o.hasFailedSink(sink) }), err
}

// OthersWithSink returns the names of other nodes that have a sink, are still stopping it or recently did. A node
// without a record is one of them, because its sinks are not known.
func (n *Nodes) OthersWithSink(ctx context.Context, sink string) ([]string, error) {
	records, err := n.read(ctx)
	var names []string
	for _, o := range n.withoutSelf(records) {
		if o.hasSink(sink) {
			names = append(names, o.Name)
		}
	}
	return names, err
}

// SetOtherNodes sets the names of the other nodes that neither have a configured sink nor are still stopping it, and of those on
// which it has failed. They are at most a second old, because operators watch the list of sinks.
func (n *Nodes) SetOtherNodes(ctx context.Context, sinks []adminapi.Sink) error {
	others, err := n.readOthers(ctx)
	for i := range sinks {
		s := &sinks[i]
		for _, o := range others {
			switch {
			case !s.Configured:
			case !o.hasSink(s.Name):
				s.MissingOn = append(s.MissingOn, o.Name)
			case o.hasFailedSink(s.Name):
				s.FailedOn = append(s.FailedOn, o.Name)
			}
		}
	}
	return err
}

func (n *Nodes) readOthers(ctx context.Context) ([]nodeRecord, error) {
	records, err := n.readCached(ctx)
	return n.withoutSelf(records), err
}

func (n *Nodes) withoutSelf(records []nodeRecord) []nodeRecord {
	return slices.DeleteFunc(slices.Clone(records), func(r nodeRecord) bool { return r.Name == n.self })
}

func (n *Nodes) readCached(ctx context.Context) ([]nodeRecord, error) {
	return n.records.get(func() ([]nodeRecord, error) { return n.read(ctx) })
}

// read returns the records of all nodes in the order of their numbers.
func (n *Nodes) read(ctx context.Context) ([]nodeRecord, error) {
	names, err := n.leases.ListNodes(ctx)
	if err != nil {
		return nil, err
	}
	texts, err := n.leases.LoadRecords(ctx, names)
	if err != nil {
		return nil, err
	}
	records := make([]nodeRecord, len(names))
	for i, name := range names {
		if json.Unmarshal(texts[i], &records[i]) != nil {
			records[i] = nodeRecord{Node: adminapi.Node{Name: name}} // it has just started, is of an earlier build, or Redis is full
		}
	}
	return records, nil
}

// Run renews the record of this node until ctx ends, and after each change of its sinks.
func (r *Reporter) Run(ctx context.Context) error {
	for {
		record, err := json.Marshal(nodeRecord{r.describeNode(ctx), r.opts.ActiveSinks(), r.opts.FailedSinks()})
		if err != nil {
			return err
		}
		// While Redis is unreachable, other components log it.
		_ = r.opts.Nodes.leases.StoreRecord(ctx, r.opts.Nodes.self, record, recordTTL)
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
	_, queued := o.StreamServer.QueueStats()
	n := adminapi.Node{
		Name: o.Nodes.self, Host: o.Host, Version: o.Version, StartedAt: o.StartedAt.UTC().Truncate(time.Millisecond),
		ConfigWarning: o.ConfigWarning(), Clients: o.StreamServer.Clients(), QueuedBytes: queued,
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
	records, err := r.opts.Nodes.readCached(ctx)
	list := make([]adminapi.Node, len(records))
	for i := range records {
		if list[i] = records[i].Node; list[i].Name == r.opts.Nodes.self {
			list[i] = r.describeNode(ctx)
		}
	}
	return adminapi.SelectPage(list, request, func(n adminapi.Node) string { return n.Name }, compareNodes), err
}

// compareNodes compares names such as node-2 and node-10 by their numbers.
func compareNodes(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) }
