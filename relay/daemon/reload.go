package daemon

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/filewatch"
	"github.com/hubrelay/hubrelay/internal/yamldoc"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/hub"
)

// registerRetry is the delay before the registration of new sinks is tried again after an error of Redis.
const registerRetry = time.Second

// ReloadSource provides changed configurations to a running daemon.
type ReloadSource struct {
	// Requested triggers a reload of the configuration.
	Requested <-chan struct{}
	// SetLogLevel applies log.level.
	SetLogLevel func(string)

	watcher *filewatch.Watcher
	load    func() (*Config, error)
}

// NewReloadSource watches a configuration file. load reads the file. Call NewReloadSource before the first read of
// the file, so no change is missed. The daemon logs each of the [yamldoc.Problems] that load returns.
func NewReloadSource(file string, load func() (*Config, error)) *ReloadSource {
	return &ReloadSource{watcher: filewatch.New(file), load: load}
}

// watchConfig applies changes of the configuration until ctx ends. Keys, log level and sources change immediately.
// [deliveryService.applyChanges] applies the sinks, because running attempts may delay that. An invalid
// configuration changes nothing.
func (a *Daemon) watchConfig(ctx context.Context, clients *hub.Hub) error {
	f := filewatch.Reloader{
		Watch: a.options.Reload.watcher, Log: a.log, Requested: a.options.Reload.Requested,
		Reload:     func() error { return a.reloadConfig(ctx, clients) },
		OnRejected: a.rejectConfig, OnFailing: a.reloadStatus.markRejected,
	}
	return f.Run(ctx)
}

// rejectConfig reports a rejected configuration.
func (a *Daemon) rejectConfig(err error) {
	a.logRejected(err)
	problems := describeProblems(err)
	a.recordRejected(problems)
	a.reloadStatus.setProblem(problems)
}

// reloadConfig reads the configuration, applies everything except the sinks, and passes it to applyChanges.
func (a *Daemon) reloadConfig(ctx context.Context, clients *hub.Hub) error {
	cfg, err := a.options.Reload.load()
	if err == nil {
		err = a.tryChangedSinks(ctx, cfg)
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
	a.options.Reload.SetLogLevel(cfg.Log.Level)
	a.sources.Load().setDesired(cfg.Sources)
	a.reloadStatus.markAccepted()
	a.recordReload(a.accepted, cfg)
	a.accepted = cfg
	select {
	case <-a.delivery.desired: // replaced by the newer one
	default:
	}
	a.delivery.desired <- cfg
	return nil
}

func (a *Daemon) logRejected(err error) {
	var problems yamldoc.Problems
	if !errors.As(err, &problems) {
		a.log.Error("configuration was rejected, the previous one stays active", "error", err)
		return
	}
	for _, p := range problems {
		a.log.Error("configuration has a problem", "problem", p.String())
	}
	a.log.Error("configuration was rejected, the previous one stays active", "problem_count", len(problems))
}

// applyChanges applies each new configuration to the sinks until ctx ends. It retries while Redis is unreachable.
// During that time the current sinks continue to run.
func (d *deliveryService) applyChanges(ctx context.Context) error {
	var cfg *config.Config
	var retry <-chan time.Time
	logged := false // One record per configuration, because connection errors differ in their port numbers.
	for {
		select {
		case <-ctx.Done():
			return nil
		case cfg = <-d.desired:
			logged = false
		case <-retry:
		}
		err := d.applyConfig(ctx, cfg)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			d.app.reloadStatus.markNotApplied(err)
			if !logged {
				logged = true
				d.app.logRejected(err)
			}
			retry = time.After(registerRetry)
			continue
		}
		retry = nil
	}
}

// changeSet lists the sinks by the effect of a new configuration.
type changeSet struct {
	added, changed, removed []*openSink // changed contains the new ones
	kept                    []*openSink
}

// planChanges registers new sinks in the log and then opens the sinks that are new or have changed.
func (d *deliveryService) planChanges(ctx context.Context, cfg *config.Config) (*changeSet, error) {
	c, roster := &changeSet{}, &d.app.sinks
	opening, startPositions := make(map[string]config.Sink), make(map[string]bool)
	for name, s := range cfg.Sinks {
		before := roster.get(name)
		if before != nil && reflect.DeepEqual(before.cfg, s) {
			c.kept = append(c.kept, before)
			continue
		}
		if opening[name] = s; before == nil {
			startPositions[name] = fromStart(s)
		}
	}
	for _, before := range roster.all() {
		if _, found := cfg.Sinks[before.name]; !found {
			c.removed = append(c.removed, before)
		}
	}
	for partition := range d.stores.keys.Partitions() {
		if err := registerSinks(ctx, d.stores.queues, partition, startPositions); err != nil {
			return nil, err
		}
	}
	opened, err := d.app.openSinks(opening)
	if err != nil {
		return nil, err
	}
	for _, s := range opened {
		if _, opening := startPositions[s.name]; opening {
			c.added = append(c.added, s)
		} else {
			c.changed = append(c.changed, s)
		}
	}
	return c, nil
}

// applyConfig applies a configuration to the sinks. After an error nothing has changed.
func (d *deliveryService) applyConfig(ctx context.Context, cfg *config.Config) error {
	a, start := d.app, time.Now()
	c, err := d.planChanges(ctx, cfg)
	if err != nil {
		return err
	}
	all := slices.Concat(c.kept, c.added, c.changed)
	slices.SortFunc(all, byName)
	warnRateConflicts(a.log, all, c.kept)
	for _, s := range c.added {
		initMetrics(a.metrics, s)
	}
	matcher := newMatcher(all)
	for _, item := range a.dispatchers {
		item.Reload(matcher)
	}
	a.notices.SetListeners(noticeListeners(all))
	if err := d.applySinkChanges(c); err != nil {
		a.log.Warn("sinks did not close cleanly", "error", err)
	}
	restartRequired := config.RestartRequired(a.cfg, cfg)
	a.reloadStatus.markApplied(restartRequired)
	d.logApplied(cfg, c, restartRequired, time.Since(start))
	d.applied = cfg
	return nil
}

// logApplied logs the differences between two configurations, and the warnings that are new.
func (d *deliveryService) logApplied(
	cfg *config.Config, c *changeSet, restartRequired []string, elapsed time.Duration,
) {
	log, keys := d.app.log, config.DiffKeys(d.applied, cfg)
	sinks := config.Changes{Added: sinkNames(c.added), Changed: sinkNames(c.changed), Removed: sinkNames(c.removed)}
	attrs := []any{"duration", elapsed.Round(time.Millisecond).String()}
	for _, difference := range listDifferences(sinks, keys) {
		attrs = append(attrs, strings.ReplaceAll(difference.title, " ", "_"), difference.names)
	}
	log.Info("configuration was applied", append(attrs, "sinks_kept", len(c.kept), "keys_kept", keys.Kept)...)
	for _, w := range config.NewWarnings(d.applied, cfg) {
		log.Warn("configuration has a warning", "warning", w.String())
	}
	if len(restartRequired) > 0 {
		log.Warn("some configuration changes require a restart", "keys", restartRequired)
	}
	if len(c.removed) > 0 {
		log.Warn("backlog of removed sinks is kept until 'hubrelay sinks forget'",
			"sinks", sinkNames(c.removed))
	}
}

// difference contains the names of sinks or keys with the same change.
type difference struct {
	title string
	names []string
}

// listDifferences returns the differences that exist.
func listDifferences(sinks, keys config.Changes) []difference {
	list := []difference{
		{"sinks added", sinks.Added},
		{"sinks changed", sinks.Changed},
		{"sinks removed", sinks.Removed},
		{"keys added", keys.Added},
		{"keys changed", keys.Changed},
		{"keys removed", keys.Removed},
	}
	return slices.DeleteFunc(list, func(d difference) bool { return len(d.names) == 0 })
}

func sinkNames(sinks []*openSink) []string {
	list := make([]string, len(sinks))
	for i, s := range sinks {
		list[i] = s.name
	}
	return list
}

// applySinkChanges applies a changeSet to the running sinks. It handles them concurrently, so a sink with slow
// attempts does not delay others. The error reports sinks that did not close cleanly.
func (d *deliveryService) applySinkChanges(c *changeSet) error {
	var errs []error
	for _, s := range c.added {
		errs = append(errs, d.replaceSink(s))
	}
	old := slices.Clone(c.removed)
	for _, s := range c.changed {
		old = append(old, d.app.sinks.get(s.name))
	}
	errs = append(errs, forEachParallel(len(old), func(i int) error {
		err := d.stopSink(old[i])
		if i >= len(c.removed) {
			return errors.Join(err, d.replaceSink(c.changed[i-len(c.removed)]))
		}
		d.app.sinks.remove(old[i].name)
		d.app.metrics.RemoveSink(old[i].name)
		return err
	}))
	return errors.Join(errs...)
}

// replaceSink adds a sink to the registry, or replaces a stopped one with the same name, and starts deliveries to
// it.
func (d *deliveryService) replaceSink(s *openSink) error {
	if d.ctx.Err() != nil {
		return s.close(context.Background()) // all sinks are stopping
	}
	if err := d.newSinkPipeline(s); err != nil {
		d.app.sinks.remove(s.name)
		return errors.Join(err, s.close(context.Background()))
	}
	d.app.sinks.add(s)
	d.startSink(s)
	return nil
}

// preflightTime limits the trials during a reload. A removed key remains valid for at most this time.
const preflightTime = 10 * time.Second

// tryChangedSinks tries the sinks that are new or have changed. Sinks that do not finish in time are applied anyway, as
// at a start.
func (a *Daemon) tryChangedSinks(ctx context.Context, cfg *config.Config) error {
	ctx, cancel := context.WithTimeout(ctx, preflightTime)
	defer cancel()
	warnings, err := cfg.Preflight(ctx, func(path string) bool {
		name, ok := strings.CutPrefix(path, "sinks.")
		before := a.sinks.get(name)
		return ok && (before == nil || !reflect.DeepEqual(before.cfg.Settings, cfg.Sinks[name].Settings))
	})
	cfg.Warnings = append(cfg.Warnings, warnings...)
	return err
}
