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

	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/source"
	"github.com/hubrelay/hubrelay/relay/internal/source/sourcestore"
)

// sourceManager are the upstreams that this daemon reads, or would if no other node did.
type sourceManager struct {
	app      *App
	stores   *stores
	instance string
	node     string
	desired  chan map[string]config.Source // holds the latest that is not taken over

	mu      sync.Mutex
	running map[string]*runningSource
}

type runningSource struct {
	cfg   config.Source
	stop  context.CancelFunc
	ended chan struct{}
}

// startSources starts what reads the upstreams.
func (a *App) startSources(ctx context.Context, p *components, st *stores, instance, node string) {
	s := &sourceManager{
		app: a, stores: st, instance: instance, node: node,
		desired: make(chan map[string]config.Source, 1), running: make(map[string]*runningSource),
	}
	a.sources.Store(s)
	s.setDesired(a.cfg.Sources)
	p.startComponent(ctx, "sources", s.run)
}

// setDesired takes over another configuration soon. The caller is alone.
func (s *sourceManager) setDesired(configured map[string]config.Source) {
	select {
	case <-s.desired: // a later one counts
	default:
	}
	s.desired <- configured
}

// run reads the upstreams until ctx ends.
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

// apply ends what is configured no more or otherwise, then begins what is new. One that stays the same is not touched.
func (s *sourceManager) apply(ctx context.Context, configured map[string]config.Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var left []string
	for name, r := range s.running {
		if c, stays := configured[name]; !stays || !reflect.DeepEqual(c, r.cfg) {
			r.stop()
			left = append(left, name)
		}
	}
	var removed, changed, added []string
	for _, name := range left {
		<-s.running[name].ended
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
		s.app.log.Info("sources", "added", added, "changed", changed, "removed", removed)
	}
}

func (s *sourceManager) startSource(ctx context.Context, name string, cfg config.Source) {
	ctx, stop := context.WithCancel(ctx)
	r := &runningSource{cfg: cfg, stop: stop, ended: make(chan struct{})}
	s.running[name] = r
	s.app.metrics.InitSource(name)
	one := source.New(source.Options{
		Name: name, URL: cfg.URL, Hub: cfg.HubID, Topics: cfg.Topics,
		Key: cfg.ReadKey, HTTP: func() (*http.Client, error) { return upstreamClient(cfg) },
		UserAgent: "hubrelay/" + s.app.settings.Version, Instance: s.instance, Node: s.node,
		Decoder: s.app.newDecoder(), Store: sourceStore{s.stores.sources}, Lease: s.stores.leases.Lease("source:"+name, leaseTime),
		ReportGap: func(ctx context.Context, id, why string) error {
			return s.app.notices.SourceGap(ctx, name, cfg.HubID, id, why)
		},
		Observer: s.app.metrics, Log: s.app.log.With("source", name),
	})
	go func() {
		defer close(r.ended)
		if err := (task{"source " + name, one.Run}).untilDone(ctx)(); err != nil && ctx.Err() == nil {
			s.app.log.Error("a source ended; it is read again after the next start", "source", name, "error", err)
		}
	}()
}

// sourceStore adapts the result of Open.
type sourceStore struct{ *sourcestore.Store }

var _ source.Store = sourceStore{}

func (s sourceStore) Open(ctx context.Context, name, hub string) (source.Position, sourcestore.Stats, error) {
	return s.Store.Open(ctx, name, hub)
}

// upstreamClient dials whatever the operator has named, unlike sinks, whose addresses may come from others.
func upstreamClient(cfg config.Source) (*http.Client, error) {
	transport, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, errors.New("the program's HTTP transport is of an unknown kind")
	}
	transport = transport.Clone()
	if cfg.CAFile != "" {
		text, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("ca_file: %s holds no certificate", cfg.CAFile)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: transport}, nil
}

// adminSources is nil while the daemon is starting.
func (a *App) adminSources() adminserver.Sources {
	if s := a.sources.Load(); s != nil {
		return s
	}
	return nil
}

// List tells how each source is that this node's configuration has.
func (s *sourceManager) List(ctx context.Context) ([]adminserver.Source, error) {
	s.mu.Lock()
	configured := make(map[string]config.Source, len(s.running))
	for name, r := range s.running {
		configured[name] = r.cfg
	}
	s.mu.Unlock()
	list := make([]adminserver.Source, 0, len(configured))
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		one, err := s.describeSource(ctx, name, configured[name])
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, nil
}

func (s *sourceManager) describeSource(ctx context.Context, name string, cfg config.Source) (adminserver.Source, error) {
	kept, err := s.stores.sources.Stats(ctx, name, cfg.HubID)
	if err != nil {
		return adminserver.Source{}, err
	}
	text, err := s.stores.sources.Status(ctx, name)
	if err != nil {
		return adminserver.Source{}, err
	}
	one := adminserver.Source{
		Name: name, Type: cfg.Type, URL: cfg.URL, Hub: cfg.HubID, Topics: cfg.Topics, State: adminserver.SourceNotRead,
		Reason:  "no node reads it at the moment; one takes over within seconds, where its configuration has it and Redis answers",
		Resumes: kept.Cursor != "", Received: kept.Received, Quarantined: kept.Quarantined, Looped: kept.Looped, Gaps: kept.Gaps,
	}
	if one.Topics == nil {
		one.Topics = []string{}
	}
	if !kept.LastStoredAt.IsZero() {
		last := kept.LastStoredAt.UTC()
		one.LastStoredAt = &last
	}
	var status source.Status
	if text != nil && json.Unmarshal(text, &status) == nil {
		one.State, one.Reason, one.Node, one.Since, one.Next = status.State, status.Reason, status.Node, &status.Since, status.Next
	}
	return one, nil
}
