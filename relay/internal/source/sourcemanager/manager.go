// Package sourcemanager runs the sources of a node, follows changes of the configuration, and describes the sources for operators.
package sourcemanager

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"sync"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/notice"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
	"github.com/hubrelay/hubrelay/relay/internal/lease"
	"github.com/hubrelay/hubrelay/relay/internal/lifecycle"
	"github.com/hubrelay/hubrelay/relay/internal/metrics"
	"github.com/hubrelay/hubrelay/relay/internal/source"
	"github.com/hubrelay/hubrelay/relay/internal/source/sourcestore"
)

// Store stores the events, positions and states of sources, and returns what operators see.
type Store interface {
	source.Store
	Stats(ctx context.Context, name, hub string) (sourcestore.Stats, error)
	Status(ctx context.Context, name string) ([]byte, error)
}

// Options configure a [Manager]. All fields are required.
type Options struct {
	Store  Store
	Leases *lease.Manager
	// Notices informs sinks and streams about lost events.
	Notices *notice.Publisher
	Decoder *ingest.Decoder
	Metrics *metrics.Metrics
	Log     *slog.Logger
	// Version is the version of hubrelay. RelayID and Node identify this relay and this node.
	Version, RelayID, Node string
}

// Manager runs the sources of this node. A source waits while another node holds its lease. The methods may be called concurrently,
// except SetConfigured.
type Manager struct {
	opts    Options
	group   *lifecycle.Group
	desired chan map[string]config.Source // holds the latest configuration that is not applied yet

	mu      sync.Mutex
	running map[string]*runningSource
}

type runningSource struct {
	cfg       config.Source
	component *lifecycle.Component
}

// New returns a manager of the configured sources. It starts nothing.
func New(configured map[string]config.Source, o Options) *Manager {
	m := &Manager{
		opts: o, group: lifecycle.NewGroup(o.Log), desired: make(chan map[string]config.Source, 1),
		running: make(map[string]*runningSource),
	}
	m.SetConfigured(configured)
	return m
}

// SetConfigured passes a new configuration to Run. It must not be called concurrently.
func (m *Manager) SetConfigured(configured map[string]config.Source) {
	select {
	case <-m.desired: // replaced by the newer one
	default:
	}
	m.desired <- configured
}

// Run runs the sources until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	m.group.Start(ctx, "changes of sources", m.applyChanges)
	return m.group.Run(ctx)
}

func (m *Manager) applyChanges(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case configured := <-m.desired:
			m.applyConfigured(ctx, configured)
		}
	}
}

// applyConfigured stops sources that were removed or changed, then starts new and changed ones. Unchanged sources continue
// to run.
func (m *Manager) applyConfigured(ctx context.Context, configured map[string]config.Source) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var stopped []string
	for name, r := range m.running {
		if c, stays := configured[name]; !stays || !reflect.DeepEqual(c, r.cfg) {
			r.component.Cancel()
			stopped = append(stopped, name)
		}
	}
	var removed, changed, added []string
	for _, name := range stopped {
		_ = m.running[name].component.Stop(context.WithoutCancel(ctx)) // fails only if the context ends
		delete(m.running, name)
		if _, stays := configured[name]; stays {
			changed = append(changed, name)
			continue
		}
		m.opts.Metrics.RemoveSource(name)
		removed = append(removed, name)
	}
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		if m.running[name] != nil {
			continue
		}
		m.startSource(ctx, name, configured[name])
		if !slices.Contains(changed, name) {
			added = append(added, name)
		}
	}
	if len(added)+len(changed)+len(removed) > 0 && ctx.Err() == nil {
		m.opts.Log.Info("sources changed", "added", added, "changed", changed, "removed", removed)
	}
}

func (m *Manager) startSource(ctx context.Context, name string, cfg config.Source) {
	m.opts.Metrics.InitSource(name)
	one := source.New(source.Options{
		Name: name, URL: cfg.URL, Hub: cfg.HubID, Topics: cfg.Topics,
		Key: cfg.ReadKey, HTTP: func() (*http.Client, error) { return source.NewHTTPClient(cfg.CAFile) },
		UserAgent: "hubrelay/" + m.opts.Version, RelayID: m.opts.RelayID, Node: m.opts.Node,
		Decoder: m.opts.Decoder, Store: m.opts.Store,
		Lease: m.opts.Leases.Lease("source:"+name, lease.DefaultTTL),
		ReportGap: func(ctx context.Context, id, reason string) error {
			return m.opts.Notices.SourceGap(ctx, name, cfg.HubID, id, reason)
		},
		Observer: m.opts.Metrics, Log: m.opts.Log.With("source", name),
	})
	m.running[name] = &runningSource{cfg, m.group.Start(ctx, "source "+name, func(ctx context.Context) error {
		err := one.Run(ctx)
		if ctx.Err() != nil {
			return err
		}
		m.opts.Log.Error("source failed and stays stopped until a restart or a change of its configuration", "source", name,
			"error", cmp.Or(err, lifecycle.ErrStopped))
		<-ctx.Done()
		return nil
	})}
}

// List returns the status of each source in the configuration of this node.
func (m *Manager) List(ctx context.Context) ([]adminapi.Source, error) {
	m.mu.Lock()
	configured := make(map[string]config.Source, len(m.running))
	for name, r := range m.running {
		configured[name] = r.cfg
	}
	m.mu.Unlock()
	list := make([]adminapi.Source, 0, len(configured))
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		one, err := m.describeSource(ctx, name, configured[name])
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, nil
}

func (m *Manager) describeSource(
	ctx context.Context, name string, cfg config.Source,
) (adminapi.Source, error) {
	stats, err := m.opts.Store.Stats(ctx, name, cfg.HubID)
	if err != nil {
		return adminapi.Source{}, err
	}
	text, err := m.opts.Store.Status(ctx, name)
	if err != nil {
		return adminapi.Source{}, err
	}
	one := adminapi.Source{
		Name: name, Type: cfg.Type, URL: cfg.URL, HubID: cfg.HubID, Topics: cfg.Topics, State: adminapi.SourceUnread,
		Reason: "no node reads the source now; a node with this source in its configuration takes over " +
			"within seconds",
		Resumes: stats.Cursor != "", Stored: stats.Stored, Quarantined: stats.Quarantined, Returned: stats.Returned,
		Gaps: stats.Gaps,
	}
	if one.Topics == nil {
		one.Topics = []string{}
	}
	if !stats.LastStoredAt.IsZero() {
		one.LastEventAt = stats.LastStoredAt.UTC()
	}
	var status source.Status
	if text != nil && json.Unmarshal(text, &status) == nil {
		one.State, one.Reason, one.Node, one.StateChangedAt = status.State, status.Reason, status.Node, status.Since
		if status.Next != nil {
			one.NextAttemptAt = *status.Next
		}
	}
	return one, nil
}
