package delivery

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
	"github.com/hubrelay/hubrelay/relay/internal/lifecycle"
	"github.com/hubrelay/hubrelay/relay/internal/metrics"
)

// SinkOptions configure how sinks are opened.
type SinkOptions struct {
	// Kinds are the kinds of sinks that the configuration may use.
	Kinds   []relay.SinkKind
	Catalog *relay.Catalog
	// Dir is the directory of the configuration. Relative paths in settings of sinks start there.
	Dir string
	// Version is sent to destinations.
	Version string
	Metrics *metrics.Metrics
	Logger  *slog.Logger
}

// Sinks are the open sinks of this node, sorted by name. It may be used concurrently.
type Sinks struct {
	opts    SinkOptions
	shared  shared
	writeMu sync.Mutex
	current atomic.Pointer[[]*openSink]
}

// openSink is an opened sink of the configuration.
type openSink struct {
	name   string
	cfg    config.Sink
	kind   relay.SinkKind
	filter relay.Filter
	impl   relay.Sink
	// extraRequests are requests besides one per attempt that were not counted yet.
	extraRequests atomic.Int64

	// The service sets the following fields before it delivers to the sink.
	pipeline *pipeline.Pipeline
	retries  *retry.Handle
	consumer *lifecycle.Component // of the queue
}

// OpenSinks opens the configured sinks. It needs no Redis. If a sink fails, the others are closed.
func OpenSinks(configured map[string]config.Sink, o SinkOptions) (*Sinks, error) {
	s := &Sinks{opts: o, shared: shared{connected: make(chan struct{})}}
	list, err := s.open(configured)
	if err != nil {
		return nil, err
	}
	for _, sink := range list {
		s.initMetrics(sink)
	}
	warnRateConflicts(o.Logger, list, nil)
	s.add(list...)
	return s, nil
}

// Close closes all sinks. It must be called after deliveries have stopped. It waits until ctx ends at most. A sink with a
// running attempt then stays open.
func (s *Sinks) Close(ctx context.Context) error {
	list := s.list()
	return forEachParallel(len(list), func(i int) error { return list[i].close(ctx) })
}

func byName(a, b *openSink) int { return strings.Compare(a.name, b.name) }

func (s *Sinks) list() []*openSink {
	if list := s.current.Load(); list != nil {
		return *list
	}
	return nil
}

// get returns nil if there is no sink with that name.
func (s *Sinks) get(name string) *openSink {
	list := s.list()
	i, found := slices.BinarySearchFunc(list, name, func(sink *openSink, name string) int {
		return strings.Compare(sink.name, name)
	})
	if found {
		return list[i]
	}
	return nil
}

// add adds sinks. It replaces sinks with the same names.
func (s *Sinks) add(in ...*openSink) {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	list := slices.DeleteFunc(slices.Clone(s.list()), func(sink *openSink) bool {
		return slices.ContainsFunc(in, func(other *openSink) bool { return other.name == sink.name })
	})
	list = append(list, in...)
	slices.SortFunc(list, byName)
	s.current.Store(&list)
}

// remove removes a stopped sink and its metrics.
func (s *Sinks) remove(name string) {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	list := slices.DeleteFunc(slices.Clone(s.list()), func(sink *openSink) bool { return sink.name == name })
	s.current.Store(&list)
	s.opts.Metrics.RemoveSink(name)
}

// openTimeout limits the time that sinks use samples while they are opened.
const openTimeout = 5 * time.Second

// open opens sinks in the order of their names. If one fails, the others are closed.
func (s *Sinks) open(configured map[string]config.Sink) (opened []*openSink, err error) {
	start := time.Now()
	var isOpen atomic.Bool
	defer func() {
		isOpen.Store(true)
		if err != nil {
			err = errors.Join(err, closeAll(opened))
			opened = nil
		}
	}()
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		cfg := configured[name]
		samples := func(kind relay.SinkKind) []relay.Delivery {
			if !isOpen.Load() && time.Since(start) > openTimeout {
				return nil // validated a moment ago, when the configuration was read
			}
			return config.Samples(cfg, kind, s.opts.Catalog)
		}
		sink, err := s.openSink(name, cfg, samples)
		if err != nil {
			return opened, fmt.Errorf("sink %s: %w", name, err)
		}
		opened = append(opened, sink)
	}
	return opened, nil
}

func (s *Sinks) openSink(
	name string, cfg config.Sink, samples func(relay.SinkKind) []relay.Delivery,
) (*openSink, error) {
	kind, err := findKind(s.opts.Kinds, cfg.Type)
	if err != nil {
		return nil, err
	}
	filter, err := newFilter(cfg)
	if err != nil {
		return nil, err
	}
	sink := &openSink{name: name, cfg: cfg, kind: kind, filter: filter}
	sink.impl, err = kind.Open(relay.SinkSettings{
		Name: name, Dir: s.opts.Dir, Log: s.opts.Logger.With("sink", name), UserAgent: "hubrelay/" + s.opts.Version,
		CountEvent:     func(event string) { s.opts.Metrics.PluginEvent(name, event) },
		CountRequests:  func(n int) { sink.extraRequests.Add(int64(n)) },
		State:          stateStore{&s.shared, name},
		WorksElsewhere: func(ctx context.Context) (bool, error) { return s.shared.worksElsewhere(ctx, name) },
		Samples:        func() []relay.Delivery { return samples(kind) },
	}, cfg.Settings)
	if err != nil {
		return nil, err
	}
	monitorCondition(sink, s.opts.Metrics, s.opts.Logger)
	return sink, nil
}

func findKind(kinds []relay.SinkKind, name string) (relay.SinkKind, error) {
	i := slices.IndexFunc(kinds, func(k relay.SinkKind) bool { return k.Type == name })
	if i < 0 {
		return relay.SinkKind{}, fmt.Errorf("unknown type %q", name)
	}
	return kinds[i], nil
}

// initMetrics creates the time series of a sink.
func (s *Sinks) initMetrics(sink *openSink) {
	s.opts.Metrics.InitSink(sink.name)
	if sink.cfg.Batch.Wait > 0 {
		s.opts.Metrics.Batched(sink.name, 0)
	}
}

// shared gives sinks access to other nodes. Sinks are opened before Redis is connected.
type shared struct {
	connected chan struct{}
	// The following fields are set before connected is closed.
	store *store.Store
	nodes Nodes
}

func (s *shared) connect(stored *store.Store, nodes Nodes) {
	s.store, s.nodes = stored, nodes
	close(s.connected)
}

var errNotConnected = errors.New("the node is still starting")

func (s *shared) worksElsewhere(ctx context.Context, sink string) (bool, error) {
	select {
	case <-s.connected:
		return s.nodes.WorksElsewhere(ctx, sink)
	default:
		return false, errNotConnected
	}
}

// stateStore is the store of states of one sink.
type stateStore struct {
	shared *shared
	sink   string
}

// Lock implements [relay.SharedState].
func (s stateStore) Lock(ctx context.Context, name string, hold time.Duration) (string, relay.StateLock, error) {
	select {
	case <-s.shared.connected:
		return s.shared.store.SharedStates.ForSink(s.sink).Lock(ctx, name, hold)
	default:
		return "", nil, fmt.Errorf("lock state: %w", errNotConnected)
	}
}

// warnRateConflicts logs sinks with the same rate key but different rates. The lowest rate applies to all of them.
// Conflicts between known sinks were logged before.
func warnRateConflicts(log *slog.Logger, sinks, known []*openSink) {
	first := make(map[string]*openSink, len(sinks))
	for _, s := range sinks {
		keyer, ok := s.impl.(relay.SharedLimit)
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
	if err := s.impl.Close(); err != nil {
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

// startsAtBeginning reports whether a new sink starts at the beginning of the log.
func startsAtBeginning(cfg config.Sink) bool { return cfg.From == "start" }

func sinkNames(sinks []*openSink) []string {
	list := make([]string, len(sinks))
	for i, s := range sinks {
		list[i] = s.name
	}
	return list
}

func (s *openSink) ordering() store.Ordering { return store.Ordering(s.cfg.Ordering) }

func (s *openSink) replayOptions() store.ReplayOptions {
	return store.ReplayOptions{Ordering: s.ordering(), MaxBacklog: s.cfg.Backlog, MaxBytes: int64(s.cfg.BacklogBytes)}
}

func (s *openSink) batchOptions() pipeline.Batch {
	b := s.cfg.Batch
	return pipeline.Batch{Wait: b.Wait, Max: b.Max, ByAccount: b.By == "account"}
}
