package app

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

	"github.com/hubrelay/hubrelay/relay/admin"
	"github.com/hubrelay/hubrelay/relay/backbone"
	"github.com/hubrelay/hubrelay/relay/config"
	"github.com/hubrelay/hubrelay/relay/source"
)

// sources are the upstreams that this daemon reads, or would if no other node did.
type sources struct {
	app      *App
	backbone *backbone.Backbone
	instance string
	node     string
	wanted   chan map[string]config.Source // holds the latest that is not taken over

	mu      sync.Mutex
	running map[string]*runningSource
}

type runningSource struct {
	cfg   config.Source
	stop  context.CancelFunc
	ended chan struct{}
}

// startSources starts what reads the upstreams.
func (a *App) startSources(ctx context.Context, p *parts, b *backbone.Backbone, instance, node string) {
	s := &sources{
		app: a, backbone: b, instance: instance, node: node,
		wanted: make(chan map[string]config.Source, 1), running: make(map[string]*runningSource),
	}
	a.sources.Store(s)
	s.want(a.cfg.Sources)
	p.start(ctx, "sources", s.run)
}

// want takes over another configuration soon. The caller is alone.
func (s *sources) want(configured map[string]config.Source) {
	select {
	case <-s.wanted: // a later one counts
	default:
	}
	s.wanted <- configured
}

// run reads the upstreams until ctx ends.
func (s *sources) run(ctx context.Context) error {
	defer s.adopt(context.WithoutCancel(ctx), nil)
	for {
		select {
		case <-ctx.Done():
			return nil
		case configured := <-s.wanted:
			s.adopt(ctx, configured)
		}
	}
}

// adopt ends what is configured no more or otherwise, then begins what is new. One that stays the same is not touched.
func (s *sources) adopt(ctx context.Context, configured map[string]config.Source) {
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
		s.app.metrics.ForgetSource(name)
		removed = append(removed, name)
	}
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		if s.running[name] != nil {
			continue
		}
		s.launch(ctx, name, configured[name])
		if !slices.Contains(changed, name) {
			added = append(added, name)
		}
	}
	if len(added)+len(changed)+len(removed) > 0 && ctx.Err() == nil && configured != nil {
		s.app.log.Info("sources", "added", added, "changed", changed, "removed", removed)
	}
}

func (s *sources) launch(ctx context.Context, name string, cfg config.Source) {
	ctx, stop := context.WithCancel(ctx)
	r := &runningSource{cfg: cfg, stop: stop, ended: make(chan struct{})}
	s.running[name] = r
	s.app.metrics.ExpectSource(name)
	one := source.New(source.Options{
		Name: name, URL: cfg.URL, Hub: cfg.HubID, Topics: cfg.Topics,
		Key: cfg.ReadKey, HTTP: func() (*http.Client, error) { return upstreamClient(cfg) },
		UserAgent: "hubrelay/" + s.app.set.Version, Instance: s.instance, Node: s.node,
		Decoder: s.app.decoder(), Store: sourceStore{s.backbone}, Lease: s.backbone.Lease("source:"+name, leaseTime),
		Gap: func(ctx context.Context, id, why string) error {
			return s.app.notices.SourceGap(ctx, name, cfg.HubID, id, why)
		},
		Observer: s.app.metrics, Log: s.app.log.With("source", name),
	})
	go func() {
		defer close(r.ended)
		if err := (run{"source " + name, one.Run}).guard(ctx)(); err != nil && ctx.Err() == nil {
			s.app.log.Error("a source ended; it is read again after the next start", "source", name, "error", err)
		}
	}()
}

// sourceStore is the backbone as sources see it.
type sourceStore struct{ *backbone.Backbone }

func (b sourceStore) OpenSource(ctx context.Context, name, hub string) (source.Place, backbone.SourceFigures, error) {
	return b.Backbone.OpenSource(ctx, name, hub)
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

// operatingSources is nil while the daemon is starting.
func (a *App) operatingSources() admin.Sources {
	if s := a.sources.Load(); s != nil {
		return s
	}
	return nil
}

// List tells how each source is that this node's configuration has.
func (s *sources) List(ctx context.Context) ([]admin.Source, error) {
	s.mu.Lock()
	configured := make(map[string]config.Source, len(s.running))
	for name, r := range s.running {
		configured[name] = r.cfg
	}
	s.mu.Unlock()
	list := make([]admin.Source, 0, len(configured))
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		one, err := s.describe(ctx, name, configured[name])
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, nil
}

func (s *sources) describe(ctx context.Context, name string, cfg config.Source) (admin.Source, error) {
	kept, err := s.backbone.SourceFigures(ctx, name, cfg.HubID)
	if err != nil {
		return admin.Source{}, err
	}
	text, err := s.backbone.SourceStatus(ctx, name)
	if err != nil {
		return admin.Source{}, err
	}
	one := admin.Source{
		Name: name, Type: cfg.Type, URL: cfg.URL, Hub: cfg.HubID, Topics: cfg.Topics, State: admin.SourceUnread,
		Reason:  "no node reads it at the moment; one takes over within seconds, where its configuration has it and Redis answers",
		Resumes: kept.Cursor != "", Received: kept.Received, Quarantined: kept.Quarantined, Returned: kept.Returned, Gaps: kept.Gaps,
	}
	if one.Topics == nil {
		one.Topics = []string{}
	}
	if !kept.Last.IsZero() {
		last := kept.Last.UTC()
		one.Last = &last
	}
	var status source.Status
	if text != nil && json.Unmarshal(text, &status) == nil {
		one.State, one.Reason, one.Node, one.Since, one.Next = status.State, status.Reason, status.Node, &status.Since, status.Next
	}
	return one, nil
}
