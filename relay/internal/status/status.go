// Package status describes the relay as a whole for operators: storage, log, streams, nodes and configuration.
package status

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/storage"
)

// Options are the parts that a [Reporter] describes. All fields are required, except Host.
type Options struct {
	Nodes *Nodes
	// Host is the name of the machine of this node.
	Host, Version string
	StartedAt     time.Time
	Log           *eventlog.Log
	StreamServer  *clients.Server
	Storage       *storage.Monitor
	Configs       *Configs
	// CheckReady returns the reason why this node is not ready.
	CheckReady func(context.Context) error
	// ActiveSinks returns the names of the sinks that this node has or is still stopping. ActiveSinksChanged receives a value
	// after changes.
	ActiveSinks        func() []string
	ActiveSinksChanged <-chan struct{}
	// FailedSinks returns the names of the sinks that have failed on this node.
	FailedSinks func() []string
	// ConfigWarning describes how the running configuration differs from the file, or returns "".
	ConfigWarning func() string
}

// freshTime is the time for which a status is not read again, so many viewers cost no more than one.
const freshTime = time.Second

// Reporter describes the relay. It may be used concurrently.
type Reporter struct {
	opts   Options
	status fresh[adminapi.Status]
}

// fresh is a value that is read again after freshTime. It may be used concurrently.
type fresh[T any] struct {
	mu     sync.Mutex
	last   T
	readAt time.Time
}

func (f *fresh[T]) get(read func() (T, error)) (T, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.readAt) < freshTime {
		return f.last, nil
	}
	value, err := read()
	if err == nil {
		f.last, f.readAt = value, time.Now()
	}
	return value, err
}

// NewReporter returns a reporter.
func NewReporter(o Options) *Reporter { return &Reporter{opts: o} }

// ShowStatus returns the state of the relay, which is at most a second old. An error means that Redis is unreachable.
func (r *Reporter) ShowStatus(ctx context.Context) (adminapi.Status, error) {
	return r.status.get(func() (adminapi.Status, error) { return r.readStatus(ctx) })
}

func (r *Reporter) readStatus(ctx context.Context) (adminapi.Status, error) {
	o := &r.opts
	info, err := o.Log.Info(ctx)
	if err != nil {
		return adminapi.Status{}, err
	}
	nodes, err := o.Nodes.leases.ListNodes(ctx)
	if err != nil {
		return adminapi.Status{}, err
	}
	n := r.describeNode(ctx)
	return adminapi.Status{
		Node: n.Name, Version: n.Version, StartedAt: n.StartedAt, Nodes: nodes, NotReady: n.NotReady, ConfigWarning: n.ConfigWarning,
		Storage: adminapi.StorageStatus{UsedBytes: o.Storage.UsedMemory(), MaxBytes: o.Storage.MaxMemory()},
		Log:     adminapi.LogStatus{Stored: info.Stored, Events: info.Length, OldestAt: info.OldestAt},
		Streams: adminapi.StreamStatus{Clients: n.Clients, QueuedBytes: n.QueuedBytes},
	}, nil
}

// ShowConfig returns the configuration of this node with its earlier versions.
func (r *Reporter) ShowConfig() adminapi.Config {
	versions, text, warnings := r.opts.Configs.Current()
	c := adminapi.Config{
		Node: r.opts.Nodes.self, Text: text, Warning: r.opts.ConfigWarning(), Problems: append([]string{}, warnings...),
		Versions: make([]adminapi.ConfigVersion, len(versions)),
	}
	for i, v := range versions {
		c.Versions[i] = adminapi.ConfigVersion{Number: v.Number, AcceptedAt: v.AcceptedAt}
	}
	return c
}

// ShowConfigVersion returns the text of an earlier version. The error is 404.uri for one that is no longer kept.
func (r *Reporter) ShowConfigVersion(number string) (adminapi.ConfigText, error) {
	n, err := strconv.Atoi(number)
	if err == nil {
		if text, ok := r.opts.Configs.Text(n); ok {
			return adminapi.ConfigText{Number: n, Text: text}, nil
		}
	}
	return adminapi.ConfigText{}, relay.NewError(relay.CodeNoURI, "this node does not keep the version "+
		strconv.Quote(relay.Truncate(number, 20))+" of the configuration")
}
