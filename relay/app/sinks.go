package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/admin"
	"github.com/hubrelay/hubrelay/relay/backbone"
	"github.com/hubrelay/hubrelay/relay/config"
	"github.com/hubrelay/hubrelay/relay/deliver"
	"github.com/hubrelay/hubrelay/relay/dispatch"
)

// consumerGroup reads the queues of all sinks.
const consumerGroup = "hubrelay"

// sink is one configured sink, opened.
type sink struct {
	name   string
	cfg    config.Sink
	kind   relay.SinkKind
	filter relay.Filter
	sink   relay.Sink
}

// openSinks builds the sinks in the order of their names. Where one cannot be built, none is.
func openSinks(configured map[string]config.Sink, s Settings, metrics *admin.Metrics) (opened []*sink, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll(opened))
			opened = nil
		}
	}()
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		cfg := configured[name]
		i := slices.IndexFunc(s.Kinds, func(k relay.SinkKind) bool { return k.Type == cfg.Type })
		if i < 0 {
			return opened, fmt.Errorf("sink %s: there is no kind %q", name, cfg.Type)
		}
		filter, err := Filter(cfg)
		if err != nil {
			return opened, fmt.Errorf("sink %s: %w", name, err)
		}
		one, err := s.Kinds[i].Open(relay.SinkSettings{
			Name: name, Log: s.Log.With("sink", name), UserAgent: "hubrelay/" + s.Version,
			Observe: func(event string) { metrics.SinkEvent(name, event) },
		}, cfg.Settings)
		if err != nil {
			return opened, fmt.Errorf("sink %s: %w", name, err)
		}
		opened = append(opened, &sink{
			name: name, cfg: cfg, kind: s.Kinds[i], sink: one, filter: filter,
		})
	}
	return opened, nil
}

// warnOfRates names sinks that share one rate and disagree about it: the slowest holds for all, and gets the least.
func warnOfRates(log *slog.Logger, sinks []*sink) {
	first := make(map[string]*sink, len(sinks))
	for _, s := range sinks {
		keyer, ok := s.sink.(relay.RateKeyer)
		if !ok || !s.cfg.Rate.Limited() {
			continue
		}
		other, seen := first[keyer.RateKey()]
		if !seen {
			first[keyer.RateKey()] = s
			continue
		}
		if other.cfg.Rate != s.cfg.Rate || other.cfg.Burst != s.cfg.Burst {
			log.Warn("two sinks lead to one destination and have different rates, which the slower one's attempts use up for both; give them one rate and burst",
				"sinks", []string{other.name, s.name}, "rates", []string{other.cfg.Rate.String(), s.cfg.Rate.String()})
		}
	}
}

func closeAll(sinks []*sink) error {
	return each(len(sinks), func(i int) error {
		if err := sinks[i].sink.Close(); err != nil {
			return fmt.Errorf("close sink %s: %w", sinks[i].name, err)
		}
		return nil
	})
}

// each does n things at once: a sink that takes its time to close, such as a plugin, holds up no other.
func each(n int, do func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = do(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// fingerprint changes with the sink's own settings: a sink that its receiver disabled is enabled by changing them.
func (s *sink) fingerprint() (string, error) {
	text, err := json.Marshal(s.cfg.Settings)
	if err != nil {
		return "", fmt.Errorf("sink %s: %w", s.name, err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8]), nil
}

// startDelivery starts what takes deliveries out of the queues: the pipeline of each sink, its router, and the retries.
func (a *App) startDelivery(ctx context.Context, p *parts, b *backbone.Backbone, store *deliver.Store, node *backbone.Node) error {
	if len(a.sinks) == 0 {
		return nil
	}
	grace := a.cfg.Server.ShutdownGrace
	lanes, concurrency := make(map[string]int, len(a.sinks)), make(map[string]int, len(a.sinks))
	for _, s := range a.sinks {
		lanes[s.name], concurrency[s.name] = s.cfg.Concurrency, s.cfg.Concurrency
		if s.cfg.Digest.Wait > 0 {
			lanes[s.name] = 1 // gathering is quick, and a digest holds the first that came
		}
	}
	subscriber, err := backbone.NewSubscriber(backbone.SubscriberConfig{
		Commands: b.Commands(), Readers: b.Readers(), Group: consumerGroup, Consumer: node.Name,
		Streams: func(sink string) []string { return b.Keys().Queues(sink) },
		Slot:    b.Keys().Slot,
		Lanes:   func(sink string) int { return lanes[sink] },
		// A kill repeats what is in flight anyway, so as much again may wait to be stored.
		Unstored: func(sink string) int { return concurrency[sink] },
		Grace:    grace,
		Log:      a.log.With("room", "queues"),
	})
	if err != nil {
		return err
	}
	p.start(ctx, "queues", func(ctx context.Context) error {
		<-ctx.Done()
		return subscriber.Close()
	})
	retries := deliver.NewRetries(deliver.RetriesOptions{Store: store, Grace: grace, Log: a.log.With("room", "deliver")})
	runs := []run{{"retries", retries.Run}}
	a.notices = a.newNotices(store)
	for _, s := range a.sinks {
		pipeline, err := a.pipeline(s, store)
		if err != nil {
			return err
		}
		a.pipelines = append(a.pipelines, pipeline)
		a.metrics.InFlight(s.name, pipeline.InFlight)
		a.metrics.Ailing(s.name, func() bool { return ailment(s.sink) != nil })
		retries.Add(pipeline)
		if pipeline.Ordered() {
			runs = append(runs, run{"sink " + s.name, a.inOrder(b, s, pipeline)})
			continue
		}
		router, err := dispatch.NewRouter(dispatch.RouterOptions{
			Handler: pipeline, Subscriber: subscriber, CloseTimeout: grace, Log: a.log.With("sink", s.name),
		})
		if err != nil {
			return err
		}
		runs = append(runs, run{"sink " + s.name, router.Run})
	}
	for _, s := range a.sinks {
		if starter, ok := s.sink.(relay.Starter); ok {
			starter.Start()
		}
	}
	p.start(ctx, "deliveries", func(ctx context.Context) error {
		err := together(runs)(ctx)
		retries.Finish(ctx)
		return err
	})
	return nil
}

// newNotices returns what tells sinks about each other.
func (a *App) newNotices(store *deliver.Store) *deliver.Notices {
	o := deliver.NoticesOptions{
		Store: store, NewID: a.decoder().NewID, Dropped: a.metrics.NoticeDropped, Log: a.log.With("room", "deliver"),
	}
	for _, s := range a.sinks {
		o.Listeners = append(o.Listeners, deliver.Listener{Sink: s.name, Filter: s.filter, Backlog: s.cfg.Backlog})
	}
	return deliver.NewNotices(o)
}

func (a *App) pipeline(s *sink, store *deliver.Store) (*deliver.Pipeline, error) {
	fingerprint, err := s.fingerprint()
	if err != nil {
		return nil, err
	}
	return deliver.New(deliver.Options{
		Name: s.name, Sink: s.sink, Store: store, Fingerprint: fingerprint,
		Schedule:     deliver.Schedule{Waits: s.cfg.Retry.Schedule, MaxAge: s.cfg.Retry.MaxAge, MaxAttempts: s.cfg.Retry.MaxAttempts},
		DisableAfter: s.cfg.DisableAfter, Backlog: s.cfg.Backlog, Rate: s.cfg.Rate, Burst: s.cfg.Burst,
		Digest:  deliver.Digest{Wait: s.cfg.Digest.Wait, Max: s.cfg.Digest.Max, By: s.cfg.Digest.By},
		Gathers: s.kind.Gathers,
		Timeout: s.cfg.Timeout, Concurrency: s.cfg.Concurrency, Ordering: deliver.Ordering(s.cfg.Ordering),
		Log: a.log.With("sink", s.name), Observer: a.metrics, Notices: a.notices,
	})
}

// closeSinks closes what New has opened, once nothing delivers any more. A sink that still has an attempt running stays
// open and is named.
func (a *App) closeSinks() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var err error
	if len(a.pipelines) == len(a.sinks) {
		err = each(len(a.pipelines), func(i int) error { return a.pipelines[i].Close(ctx) })
	} else {
		err = closeAll(a.sinks)
	}
	if err != nil {
		a.log.Warn("sinks did not close well", "error", err)
	}
}
