package daemon

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
)

// sourceManager runs the sources of this node. Another node may hold the lease of a source; then the source waits.
type sourceManager struct {
	stores  *stores
	notices *notice.Publisher
	decoder *ingest.Decoder
	metrics *metrics.Metrics
	log     *slog.Logger
	version string
	relayID string
	node    string
	group   *lifecycle.Group
	desired chan map[string]config.Source // holds the latest configuration that is not applied yet

	mu      sync.Mutex
	running map[string]*runningSource
}

type runningSource struct {
	cfg       config.Source
	component *lifecycle.Component
}

// newSources creates the sources and starts nothing.
func (d *Daemon) newSources(st *stores, notices *notice.Publisher, relayID, node string) *sourceManager {
	s := &sourceManager{
		stores: st, notices: notices, decoder: d.newDecoder(), metrics: d.metrics, log: d.log,
		version: d.options.Version, relayID: relayID, node: node, group: lifecycle.NewGroup(d.log),
		desired: make(chan map[string]config.Source, 1), running: make(map[string]*runningSource),
	}
	s.setDesired(d.cfg.Sources)
	return s
}

// setDesired passes a new configuration to applyChanges. It must not be called concurrently.
func (s *sourceManager) setDesired(configured map[string]config.Source) {
	select {
	case <-s.desired: // replaced by the newer one
	default:
	}
	s.desired <- configured
}

// run runs the sources until ctx ends.
func (s *sourceManager) run(ctx context.Context) error {
	s.group.Start(ctx, "changes of sources", s.applyChanges)
	return s.group.Run(ctx)
}

func (s *sourceManager) applyChanges(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case configured := <-s.desired:
			s.apply(ctx, configured)
		}
	}
}

// apply stops sources that were removed or changed, then starts new and changed ones. Unchanged sources continue
// to run.
func (s *sourceManager) apply(ctx context.Context, configured map[string]config.Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var stopped []string
	for name, r := range s.running {
		if c, stays := configured[name]; !stays || !reflect.DeepEqual(c, r.cfg) {
			r.component.Cancel()
			stopped = append(stopped, name)
		}
	}
	var removed, changed, added []string
	for _, name := range stopped {
		_ = s.running[name].component.Stop(context.WithoutCancel(ctx)) // fails only if the context ends
		delete(s.running, name)
		if _, stays := configured[name]; stays {
			changed = append(changed, name)
			continue
		}
		s.metrics.RemoveSource(name)
		removed = append(removed, name)
	}
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		if s.running[name] != nil {
			continue
		}
		s.startSource(ctx, name, configured[name])
		if !slices.Contains(changed, name) {
			added = append(added, name)
		}
	}
	if len(added)+len(changed)+len(removed) > 0 && ctx.Err() == nil {
		s.log.Info("sources changed", "added", added, "changed", changed, "removed", removed)
	}
}

func (s *sourceManager) startSource(ctx context.Context, name string, cfg config.Source) {
	s.metrics.InitSource(name)
	one := source.New(source.Options{
		Name: name, URL: cfg.URL, Hub: cfg.HubID, Topics: cfg.Topics,
		Key: cfg.ReadKey, HTTP: func() (*http.Client, error) { return source.NewHTTPClient(cfg.CAFile) },
		UserAgent: "hubrelay/" + s.version, RelayID: s.relayID, Node: s.node,
		Decoder: s.decoder, Store: guardedSources{s.stores.sources, s.stores},
		Lease: s.stores.leases.Lease("source:"+name, lease.DefaultTTL),
		ReportGap: func(ctx context.Context, id, reason string) error {
			return s.notices.SourceGap(ctx, name, cfg.HubID, id, reason)
		},
		Observer: s.metrics, Log: s.log.With("source", name),
	})
	s.running[name] = &runningSource{cfg, s.group.Start(ctx, "source "+name, func(ctx context.Context) error {
		err := one.Run(ctx)
		if ctx.Err() != nil {
			return err
		}
		s.log.Error("source failed and stays stopped until a restart or a change of its configuration", "source", name,
			"error", cmp.Or(err, lifecycle.ErrStopped))
		<-ctx.Done()
		return nil
	})}
}

// List returns the status of each source in the configuration of this node.
func (s *sourceManager) List(ctx context.Context) ([]adminapi.Source, error) {
	s.mu.Lock()
	configured := make(map[string]config.Source, len(s.running))
	for name, r := range s.running {
		configured[name] = r.cfg
	}
	s.mu.Unlock()
	list := make([]adminapi.Source, 0, len(configured))
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		one, err := s.describeSource(ctx, name, configured[name])
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, nil
}

func (s *sourceManager) describeSource(
	ctx context.Context, name string, cfg config.Source,
) (adminapi.Source, error) {
	stats, err := s.stores.sources.Stats(ctx, name, cfg.HubID)
	if err != nil {
		return adminapi.Source{}, err
	}
	text, err := s.stores.sources.Status(ctx, name)
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
