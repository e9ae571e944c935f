package daemon

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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/pipeline"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/retry"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/metrics"
)

// openSink is an opened sink of the configuration.
type openSink struct {
	name   string
	cfg    config.Sink
	kind   relay.SinkKind
	filter relay.Filter
	sink   relay.Sink
	// extraRequests are requests besides one per attempt that were not counted yet.
	extraRequests atomic.Int64

	pipeline *pipeline.Pipeline // nil until newSinkPipeline
	retries  *retry.Handle      // nil until newSinkPipeline
	stop     context.CancelFunc // stops the consumer of its queue; nil until startSink
	done     chan struct{}      // closed when the consumer has stopped
}

func byName(a, b *openSink) int { return strings.Compare(a.name, b.name) }

// sinkRegistry contains the current sinks, sorted by name. It may be used concurrently.
type sinkRegistry struct {
	writeMu sync.Mutex
	current atomic.Pointer[[]*openSink]
}

func (r *sinkRegistry) all() []*openSink {
	if list := r.current.Load(); list != nil {
		return *list
	}
	return nil
}

// get returns nil if there is no sink with that name.
func (r *sinkRegistry) get(name string) *openSink {
	list := r.all()
	if i, found := slices.BinarySearchFunc(list, name, func(s *openSink, name string) int {
		return strings.Compare(s.name, name)
	}); found {
		return list[i]
	}
	return nil
}

// add adds sinks. It replaces sinks with the same names.
func (r *sinkRegistry) add(in ...*openSink) {
	r.writeMu.Lock()
	defer r.writeMu.Unlock()
	list := slices.DeleteFunc(slices.Clone(r.all()), func(s *openSink) bool {
		return slices.ContainsFunc(in, func(other *openSink) bool { return other.name == s.name })
	})
	list = append(list, in...)
	slices.SortFunc(list, byName)
	r.current.Store(&list)
}

func (r *sinkRegistry) remove(name string) {
	r.writeMu.Lock()
	defer r.writeMu.Unlock()
	list := slices.DeleteFunc(slices.Clone(r.all()), func(s *openSink) bool { return s.name == name })
	r.current.Store(&list)
}

// openTimeout limits the time that sinks use samples while they are opened.
const openTimeout = 5 * time.Second

// openSinks opens the sinks in the order of their names. If one fails, the others are closed.
func (a *Daemon) openSinks(configured map[string]config.Sink) (opened []*openSink, err error) {
	s, start := a.options, time.Now()
	var open atomic.Bool
	defer func() {
		open.Store(true)
		if err != nil {
			err = errors.Join(err, closeAll(opened))
			opened = nil
		}
	}()
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		cfg := configured[name]
		i := slices.IndexFunc(s.Sinks, func(k relay.SinkKind) bool { return k.Type == cfg.Type })
		if i < 0 {
			return opened, fmt.Errorf("sink %s: unknown type %q", name, cfg.Type)
		}
		filter, err := newFilter(cfg)
		if err != nil {
			return opened, fmt.Errorf("sink %s: %w", name, err)
		}
		result := &openSink{name: name, cfg: cfg, kind: s.Sinks[i], filter: filter}
		result.sink, err = s.Sinks[i].Open(relay.SinkSettings{
			Name: name, Dir: a.cfg.Dir(), Log: s.Log.With("sink", name), UserAgent: "hubrelay/" + s.Version,
			CountEvent:    func(event string) { a.metrics.PluginEvent(name, event) },
			CountRequests: func(n int) { result.extraRequests.Add(int64(n)) },
			State:         lazyStateStore{a, name},
			Samples: func() []relay.Delivery {
				if !open.Load() && time.Since(start) > openTimeout {
					return nil // validated a moment ago, when the configuration was read
				}
				return config.Samples(cfg, s.Sinks[i], a.catalog)
			},
		}, cfg.Settings)
		if err != nil {
			return opened, fmt.Errorf("sink %s: %w", name, err)
		}
		monitorCondition(result, a.metrics, s.Log)
		opened = append(opened, result)
	}
	return opened, nil
}

// initMetrics creates the time series of a sink.
func initMetrics(m *metrics.Metrics, s *openSink) {
	m.InitSink(s.name)
	if s.cfg.Batch.Wait > 0 {
		m.Batched(s.name, 0)
	}
}

// lazyStateStore is the state store of a sink. It exists before Redis is connected.
type lazyStateStore struct {
	app  *Daemon
	sink string
}

func (m lazyStateStore) Lock(ctx context.Context, name string, hold time.Duration) (string, relay.StateLock, error) {
	store := m.app.store.Load()
	if store == nil {
		return "", nil, errors.New("lock state: the daemon is still starting")
	}
	return store.SharedStates.ForSink(m.sink).Lock(ctx, name, hold)
}

// warnRateConflicts logs sinks with the same rate key but different rates. The lowest rate applies to all of them.
// Conflicts between known sinks were logged before.
func warnRateConflicts(log *slog.Logger, sinks, known []*openSink) {
	first := make(map[string]*openSink, len(sinks))
	for _, s := range sinks {
		keyer, ok := s.sink.(relay.SharedLimit)
		if !ok || !s.cfg.Rate.Limited() {
			continue
		}
		other, seen := first[keyer.RateKey()]
		if !seen {
			first[keyer.RateKey()] = s
			continue
		}
		if slices.Contains(known, other) && slices.Contains(known, s) {
			continue
		}
		if other.cfg.Rate != s.cfg.Rate || other.cfg.Burst != s.cfg.Burst {
			log.Warn("sinks with the same destination have different rates, the lower one applies to both",
				"sinks", []string{other.name, s.name}, "rates", []string{other.cfg.Rate.String(), s.cfg.Rate.String()})
		}
	}
}

func closeAll(sinks []*openSink) error {
	return forEachParallel(len(sinks), func(i int) error { return sinks[i].close(context.Background()) })
}

// close closes the sink after its attempts have ended. It waits until ctx ends at most.
func (s *openSink) close(ctx context.Context) error {
	if s.pipeline != nil {
		return s.pipeline.Close(ctx)
	}
	if err := s.sink.Close(); err != nil {
		return fmt.Errorf("close sink %s: %w", s.name, err)
	}
	return nil
}

// forEachParallel calls do for 0 to n-1 concurrently, so a sink that closes slowly, such as a plugin, does not
// delay others.
func forEachParallel(n int, do func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = do(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// fingerprint identifies the settings of the sink. A sink that its destination disabled is enabled again when the
// fingerprint changes.
func (s *openSink) fingerprint() (string, error) {
	text, err := json.Marshal(s.cfg.Settings)
	if err != nil {
		return "", fmt.Errorf("sink %s: %w", s.name, err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8]), nil
}

// handlerConcurrency returns the maximum number of queue entries in progress.
func (s *openSink) handlerConcurrency() int {
	if b := s.batchOptions(); b.Wait > 0 {
		return b.HandlerConcurrency(s.cfg.Concurrency)
	}
	return s.cfg.Concurrency
}

func (s *openSink) ordering() store.Ordering { return store.Ordering(s.cfg.Ordering) }

func (s *openSink) replayOptions() store.ReplayOptions {
	return store.ReplayOptions{Ordering: s.ordering(), MaxBacklog: s.cfg.Backlog}
}

func (s *openSink) batchOptions() pipeline.Batch {
	b := s.cfg.Batch
	return pipeline.Batch{Wait: b.Wait, Max: b.Max, ByAccount: b.By == "account"}
}

func (a *Daemon) newPipeline(
	s *openSink, store *store.Store, wake func(time.Duration),
) (*pipeline.Pipeline, error) {
	fingerprint, err := s.fingerprint()
	if err != nil {
		return nil, err
	}
	return pipeline.New(pipeline.Options{
		Name: s.name, Sink: s.sink, Store: store, Wake: wake, Fingerprint: fingerprint,
		TakeExtraRequests: func() int { return int(s.extraRequests.Swap(0)) },
		Schedule: pipeline.Schedule{
			Delays: s.cfg.Retry.Schedule, MaxAge: s.cfg.Retry.MaxAge, MaxAttempts: s.cfg.Retry.MaxAttempts,
		},
		DisableAfter: s.cfg.DisableAfter, Backlog: s.cfg.Backlog, Rate: s.cfg.Rate, Burst: s.cfg.Burst,
		Digest:             pipeline.Digest{Wait: s.cfg.Digest.Wait, Max: s.cfg.Digest.Max, By: s.cfg.Digest.By},
		Batch:              s.batchOptions(),
		BatchesUnsupported: !s.kind.Batches, DigestOverRate: s.kind.DigestOverRate,
		Timeout: s.cfg.Timeout, Concurrency: s.cfg.Concurrency, Ordering: s.ordering(),
		Log: a.log.With("sink", s.name), Observer: a.metrics, Notices: a.notices,
		OnDisabled: func(reason string) { a.recordDisabledSink(s.name, reason) },
	})
}

// closeAllSinks closes all sinks after deliveries have stopped. A sink with a running attempt stays open and is
// logged.
func (a *Daemon) closeAllSinks() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	list := a.sinks.all()
	if err := forEachParallel(len(list), func(i int) error { return list[i].close(ctx) }); err != nil {
		a.log.Warn("sinks did not close cleanly", "error", err)
	}
}
