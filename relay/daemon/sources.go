package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"reflect"
	"slices"
	"sync"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/source"
)

// sourceManager runs the sources of this node. Another node may hold the lease of a source; then the source waits.
type sourceManager struct {
	app      *Daemon
	stores   *stores
	instance string
	node     string
	desired  chan map[string]config.Source // holds the latest configuration that is not applied yet

	mu      sync.Mutex
	running map[string]*runningSource
}

type runningSource struct {
	cfg  config.Source
	stop context.CancelFunc
	done chan struct{}
}

// startSources starts the source manager.
func (a *Daemon) startSources(ctx context.Context, p *components, st *stores, instance, node string) {
	s := &sourceManager{
		app: a, stores: st, instance: instance, node: node,
		desired: make(chan map[string]config.Source, 1), running: make(map[string]*runningSource),
	}
	a.sources.Store(s)
	s.setDesired(a.cfg.Sources)
	p.startComponent(ctx, "sources", s.run)
}

// setDesired passes a new configuration to run. It must not be called concurrently.
func (s *sourceManager) setDesired(configured map[string]config.Source) {
	select {
	case <-s.desired: // replaced by the newer one
	default:
	}
	s.desired <- configured
}

// run runs the sources until ctx ends.
func (s *sourceManager) run(ctx context.Context) error {
	defer s.apply(context.WithoutCancel(ctx), nil)
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
			r.stop()
			stopped = append(stopped, name)
		}
	}
	var removed, changed, added []string
	for _, name := range stopped {
		<-s.running[name].done
		delete(s.running, name)
		if _, stays := configured[name]; stays {
			changed = append(changed, name)
			continue
		}
		s.app.metrics.RemoveSource(name)
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
	if len(added)+len(changed)+len(removed) > 0 && ctx.Err() == nil && configured != nil {
		s.app.log.Info("sources changed", "added", added, "changed", changed, "removed", removed)
	}
}

func (s *sourceManager) startSource(ctx context.Context, name string, cfg config.Source) {
	ctx, stop := context.WithCancel(ctx)
	r := &runningSource{cfg: cfg, stop: stop, done: make(chan struct{})}
	s.running[name] = r
	s.app.metrics.InitSource(name)
	one := source.New(source.Options{
		Name: name, URL: cfg.URL, Hub: cfg.HubID, Topics: cfg.Topics,
		Key: cfg.ReadKey, HTTP: func() (*http.Client, error) { return upstreamClient(cfg) },
		UserAgent: "hubrelay/" + s.app.options.Version, Instance: s.instance, Node: s.node,
		Decoder: s.app.newDecoder(), Store: guardedSources{s.stores.sources, s.stores},
		Lease: s.stores.leases.Lease("source:"+name, leaseTime),
		ReportGap: func(ctx context.Context, id, reason string) error {
			return s.app.notices.SourceGap(ctx, name, cfg.HubID, id, reason)
		},
		Observer: s.app.metrics, Log: s.app.log.With("source", name),
	})
	go func() {
		defer close(r.done)
		if err := (task{"source " + name, one.Run}).untilDone(ctx)(); err != nil && ctx.Err() == nil {
			s.app.log.Error("source failed and stays stopped until a restart", "source", name, "error", err)
		}
	}()
}

// upstreamClient returns an HTTP client that may dial any address. Unlike the addresses of sinks, the address of
// an upstream comes from the operator only.
func upstreamClient(cfg config.Source) (*http.Client, error) {
	transport, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, errors.New("unexpected type of http.DefaultTransport")
	}
	transport = transport.Clone()
	if cfg.CAFile != "" {
		text, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("ca_file: %s contains no certificate", cfg.CAFile)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: transport}, nil
}

// adminSources returns nil while the daemon is starting.
func (a *Daemon) adminSources() adminserver.Sources {
	if s := a.sources.Load(); s != nil {
		return s
	}
	return nil
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
		Reason: "no node reads the source at present; a node with this source in its configuration takes over " +
			"within seconds",
		Resumes: stats.Cursor != "", Received: stats.Received, Quarantined: stats.Quarantined, Returned: stats.Looped,
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
		one.State, one.Reason, one.Node, one.Since = status.State, status.Reason, status.Node, status.Since
		if status.Next != nil {
			one.NextAttemptAt = *status.Next
		}
	}
	return one, nil
}
