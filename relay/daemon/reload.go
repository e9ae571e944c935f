package daemon

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/internal/yamldoc"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/hub"
)

// configPollInterval is how often the configuration file is looked at; a change is taken over when two looks saw the same, so that
// a key that is taken away closes its streams within a second, and later where plugins ([preflightTime]) or templates
// ([config.Load]) of the same file have to be tried first.
const configPollInterval = 400 * time.Millisecond

// registerRetry is the pause before new sinks are given their place in the log again, where Redis was away.
const registerRetry = time.Second

// ReloadSource gives a running daemon its changed configuration.
type ReloadSource struct {
	// Requested makes the daemon read the configuration again.
	Requested <-chan struct{}
	// SetLogLevel applies log.level.
	SetLogLevel func(string)

	watcher          *config.FileWatcher
	load             func() (*Config, error)
	inventoryWatcher *config.FileWatcher // nil without an inventory file
	inventoryFile    string
}

// NewReloadSource watches a configuration file, which load reads. Call it before the file is read for the start, so the daemon
// misses no change. The daemon logs each of the [yamldoc.Problems] that load returns.
func NewReloadSource(file string, load func() (*Config, error)) *ReloadSource {
	return &ReloadSource{watcher: config.NewFileWatcher(file), load: load}
}

// WatchInventory also watches an inventory file. Call it before that file is read. It does nothing if the path is empty.
func (r *ReloadSource) WatchInventory(file string) {
	if file != "" {
		r.inventoryWatcher, r.inventoryFile = config.NewFileWatcher(file), file
	}
}

// reloadStatus tells of the latest file whether it runs: an older one that is adopted late must not hide that a newer was refused.
// It may be used concurrently.
type reloadStatus struct {
	setMetric func(bool)

	mu      sync.Mutex
	refused bool
}

func (l *reloadStatus) rejected() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = true
	l.setMetric(false)
}

func (l *reloadStatus) accepted() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = false
}

func (l *reloadStatus) applied() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.refused {
		l.setMetric(true)
	}
}

// watchConfig takes over changes of the configuration until ctx ends: keys, the level of the log and sources once it was found
// good, the sinks by [deliveryService.applyChanges], since attempts that end may take their time. One with mistakes changes nothing.
func (a *App) watchConfig(ctx context.Context, clients *hub.Hub) error {
	tick := time.NewTicker(configPollInterval)
	defer tick.Stop()
	f := &configWatcher{
		watch: a.settings.Reload.watcher, log: a.log, reload: func() error { return a.reloadConfig(ctx, clients) },
		onRejected: a.logRejected, onFailing: a.latest.rejected,
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.settings.Reload.Requested:
			f.reloadNow()
		case <-tick.C:
			f.checkFile()
		}
	}
}

// reloadConfig reads the configuration and takes over all of it but the sinks, which are handed on.
func (a *App) reloadConfig(ctx context.Context, clients *hub.Hub) error {
	cfg, err := a.settings.Reload.load()
	if err == nil {
		err = a.preflight(ctx, cfg)
	}
	if err == nil {
		err = a.keys.setConfig(cfg.Auth.Keys)
	}
	if err == nil && a.logins != nil {
		err = a.logins.configure(cfg.Admin.Tokens)
	}
	if err != nil {
		return err
	}
	clients.RecheckKeys()
	a.settings.Reload.SetLogLevel(cfg.Log.Level)
	a.sources.Load().setDesired(cfg.Sources)
	a.latest.accepted()
	select {
	case <-a.delivery.desired: // a later one counts
	default:
	}
	a.delivery.desired <- cfg
	return nil
}

func (a *App) logRejected(err error) {
	var problems yamldoc.Problems
	if !errors.As(err, &problems) {
		a.log.Error("the configuration was not taken over; what ran before goes on", "error", err)
		return
	}
	for _, p := range problems {
		a.log.Error("the configuration was not taken over", "problem", p.String())
	}
	a.log.Error("the configuration has mistakes; what ran before goes on", "mistakes", len(problems))
}

// applyChanges brings the sinks in line with each configuration that is wanted, until ctx ends. While Redis is away it tries
// again, and all that runs goes on.
func (d *deliveryService) applyChanges(ctx context.Context) error {
	var cfg *config.Config
	var again <-chan time.Time
	told := false // one line for each configuration: errors of connections differ by their ports
	for {
		select {
		case <-ctx.Done():
			return nil
		case cfg = <-d.desired:
			told = false
		case <-again:
		}
		err := d.applyConfig(ctx, cfg)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			d.app.metrics.Reloaded(false)
			if !told {
				told = true
				d.app.logRejected(err)
			}
			again = time.After(registerRetry)
			continue
		}
		again = nil
	}
}

// change is what another configuration means for the sinks.
type change struct {
	added, changed, removed []*openSink // of changed the new ones
	kept                    []*openSink
}

// planChanges opens the sinks that are new or have changed, once the new ones have their place in the log.
func (d *deliveryService) planChanges(ctx context.Context, cfg *config.Config) (*change, error) {
	c, roster := &change{}, &d.app.sinks
	fresh, places := make(map[string]config.Sink), make(map[string]bool)
	for name, s := range cfg.Sinks {
		before := roster.get(name)
		if before != nil && reflect.DeepEqual(before.cfg, s) {
			c.kept = append(c.kept, before)
			continue
		}
		if fresh[name] = s; before == nil {
			places[name] = fromStart(s)
		}
	}
	for _, before := range roster.all() {
		if _, stays := cfg.Sinks[before.name]; !stays {
			c.removed = append(c.removed, before)
		}
	}
	for partition := range d.stores.keys.Partitions() {
		if err := registerSinks(ctx, d.stores.queues, partition, places); err != nil {
			return nil, err
		}
	}
	opened, err := d.app.openSinks(fresh)
	if err != nil {
		return nil, err
	}
	for _, s := range opened {
		if _, fresh := places[s.name]; fresh {
			c.added = append(c.added, s)
		} else {
			c.changed = append(c.changed, s)
		}
	}
	return c, nil
}

// applyConfig brings the sinks in line with a configuration. After an error nothing has changed.
func (d *deliveryService) applyConfig(ctx context.Context, cfg *config.Config) error {
	a, began := d.app, time.Now()
	c, err := d.planChanges(ctx, cfg)
	if err != nil {
		return err
	}
	all := slices.Concat(c.kept, c.added, c.changed)
	slices.SortFunc(all, byName)
	warnRateConflicts(a.log, all, c.kept)
	for _, s := range c.added {
		a.metrics.InitSink(s.name)
	}
	matcher := newMatcher(all)
	for _, one := range a.dispatchers {
		one.Reload(matcher)
	}
	a.notices.Listen(noticeListeners(all))
	if err := d.applySinkChanges(c); err != nil {
		a.log.Warn("sinks did not close well", "error", err)
	}
	a.latest.applied()
	d.logApplied(cfg, c, time.Since(began))
	d.applied = cfg
	return nil
}

// logApplied tells what another configuration has changed, and of its warnings those that are new.
func (d *deliveryService) logApplied(cfg *config.Config, c *change, took time.Duration) {
	log, keys := d.app.log, config.DiffKeys(d.applied, cfg)
	said := []any{"took", took.Round(time.Millisecond).String()}
	for _, one := range []struct {
		what  string
		names []string
	}{
		{"sinks_added", sinkNames(c.added)},
		{"sinks_changed", sinkNames(c.changed)},
		{"sinks_removed", sinkNames(c.removed)},
		{"keys_added", keys.Added},
		{"keys_changed", keys.Changed},
		{"keys_removed", keys.Removed},
	} {
		if len(one.names) > 0 {
			said = append(said, one.what, one.names)
		}
	}
	log.Info("the configuration was taken over", append(said, "sinks_kept", len(c.kept), "keys_kept", keys.Kept)...)
	for _, w := range config.NewWarnings(d.applied, cfg) {
		log.Warn("configuration", "warning", w.String())
	}
	if later := config.RestartRequired(d.app.cfg, cfg); len(later) > 0 {
		log.Warn("some changes of the configuration take effect at the next start", "keys", later)
	}
	if len(c.removed) > 0 {
		log.Warn("what waits for sinks that left the configuration is kept, until they come back or 'hubrelay sinks forget'",
			"sinks", sinkNames(c.removed))
	}
}

func sinkNames(sinks []*openSink) []string {
	list := make([]string, len(sinks))
	for i, s := range sinks {
		list[i] = s.name
	}
	return list
}

// applySinkChanges brings the sinks that run in line, each by itself, so that one whose attempts take their time holds up no other.
// The error is of sinks that did not close well.
func (d *deliveryService) applySinkChanges(c *change) error {
	var errs []error
	for _, s := range c.added {
		errs = append(errs, d.replaceSink(s))
	}
	former := slices.Clone(c.removed)
	for _, s := range c.changed {
		former = append(former, d.app.sinks.get(s.name))
	}
	errs = append(errs, forEachParallel(len(former), func(i int) error {
		err := d.stopSink(former[i])
		if i >= len(c.removed) {
			return errors.Join(err, d.replaceSink(c.changed[i-len(c.removed)]))
		}
		d.app.sinks.remove(former[i].name)
		d.app.metrics.RemoveSink(former[i].name)
		return err
	}))
	return errors.Join(errs...)
}

// replaceSink puts a sink into the roster, in place of one of its name that has ended, and begins to deliver to it.
func (d *deliveryService) replaceSink(s *openSink) error {
	if d.ctx.Err() != nil {
		return s.close(context.Background()) // all are ending
	}
	if err := d.newSinkPipeline(s); err != nil {
		d.app.sinks.remove(s.name)
		return errors.Join(err, s.close(context.Background()))
	}
	d.app.sinks.add(s)
	d.startSink(s)
	return nil
}
