package daemon

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/filewatch"
	"github.com/hubrelay/hubrelay/internal/yamldoc"
	"github.com/hubrelay/hubrelay/relay/internal/clients"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/delivery"
	"github.com/hubrelay/hubrelay/relay/internal/lifecycle"
	"github.com/hubrelay/hubrelay/relay/internal/source/sourcemanager"
)

// registerRetry is the delay before the registration of new sinks is tried again after an error of Redis.
const registerRetry = time.Second

// maxLoggedProblems limits the lines of the log about one rejected configuration.
const maxLoggedProblems = 20

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

// reloader applies changed configurations to the running daemon.
type reloader struct {
	*Daemon
	streamServer *clients.Server
	deliveries   *delivery.Service
	sources      *sourcemanager.Manager

	accepted *config.Config      // the latest accepted one; only reloadConfig uses it
	applied  *config.Config      // the last one that was applied to the sinks; only applySinks uses it
	desired  chan *config.Config // holds the latest accepted one that is not applied to the sinks yet
}

// startReload starts to apply changes of the configuration. Keys, log level and sources change immediately. Sinks follow
// in a component that stops with them, because running attempts may delay a change.
func (d *Daemon) startReload(
	ctx context.Context, group *lifecycle.Group, streamServer *clients.Server, deliveries *delivery.Service,
	sources *sourcemanager.Manager,
) {
	r := &reloader{
		Daemon: d, streamServer: streamServer, deliveries: deliveries, sources: sources,
		accepted: d.cfg, applied: d.cfg, desired: make(chan *config.Config, 1),
	}
	deliveries.StartComponent(ctx, "changes of sinks", r.applySinks)
	group.Start(ctx, "configuration", r.watchFile)
}

// watchFile reloads the configuration after changes until ctx ends. An invalid configuration changes nothing.
func (r *reloader) watchFile(ctx context.Context) error {
	f := filewatch.Reloader{
		Watch: r.options.Reload.watcher, Log: r.log, Requested: r.options.Reload.Requested,
		Reload:     func() error { return r.reloadConfig(ctx) },
		OnRejected: r.rejectConfig, OnFailing: r.reloads.MarkRejected,
	}
	return f.Run(ctx)
}

// rejectConfig reports a rejected configuration.
func (r *reloader) rejectConfig(err error) {
	r.logRejected(err)
	problems := describeProblems(err)
	r.recordRejected(problems)
	r.reloads.SetProblem(problems)
}

// reloadConfig reads the configuration, applies everything except the sinks, and passes it to applySinks.
func (r *reloader) reloadConfig(ctx context.Context) error {
	cfg, err := r.options.Reload.load()
	if err == nil {
		err = r.tryChangedSinks(ctx, cfg)
	}
	if err == nil {
		err = r.keys.SetConfigured(configuredKeys(cfg.Auth.Keys))
	}
	if err == nil && r.adminTokens != nil {
		err = r.adminTokens.SetConfigured(configuredTokens(cfg.Admin.Tokens))
	}
	if err != nil {
		return err
	}
	r.streamServer.RecheckKeys()
	r.options.Reload.SetLogLevel(cfg.Log.Level)
	r.sources.SetConfigured(cfg.Sources)
	r.reloads.MarkAccepted()
	r.recordReload(r.accepted, cfg)
	r.addConfig(cfg)
	r.accepted = cfg
	select {
	case <-r.desired: // replaced by the newer one
	default:
	}
	r.desired <- cfg
	return nil
}

// addConfig makes cfg the current version that operators see.
func (d *Daemon) addConfig(cfg *config.Config) {
	warnings := make([]string, len(cfg.Warnings))
	for i, w := range cfg.Warnings {
		warnings[i] = w.String()
	}
	d.configs.Add(cfg, warnings, time.Now())
}

func (r *reloader) logRejected(err error) {
	var problems yamldoc.Problems
	if !errors.As(err, &problems) {
		r.log.Error("configuration was rejected, the previous one stays active", "error", err)
		return
	}
	for _, p := range problems[:min(len(problems), maxLoggedProblems)] {
		r.log.Error("configuration has a problem", "problem", p.String())
	}
	r.log.Error("configuration was rejected, the previous one stays active", "problem_count", len(problems))
}

// applySinks applies each new configuration to the sinks until ctx ends. It retries while Redis is unreachable.
// During that time the current sinks continue to run.
func (r *reloader) applySinks(ctx context.Context) error {
	defer r.deliveries.Wait()
	var cfg *config.Config
	var retry <-chan time.Time
	logged := false // One record per configuration, because connection errors differ in their port numbers.
	for {
		select {
		case <-ctx.Done():
			return nil
		case cfg = <-r.desired:
			logged = false
		case <-retry:
		}
		start := time.Now()
		changes, err := r.deliveries.Apply(ctx, cfg.Sinks)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			r.reloads.MarkNotApplied(err)
			if !logged {
				logged = true
				r.logRejected(err)
			}
			retry = time.After(registerRetry)
			continue
		}
		retry = nil
		restartRequired := config.RestartRequired(r.cfg, cfg)
		r.reloads.MarkApplied(restartRequired)
		r.logApplied(cfg, changes, restartRequired, time.Since(start))
		r.applied = cfg
	}
}

// logApplied logs the differences between two configurations, and the warnings that are new.
func (r *reloader) logApplied(
	cfg *config.Config, c delivery.Changes, restartRequired []string, elapsed time.Duration,
) {
	log, keys := r.log, config.DiffKeys(r.applied, cfg)
	sinks := config.Changes{Added: c.Added, Changed: c.Changed, Removed: c.Removed}
	attrs := []any{"duration", elapsed.Round(time.Millisecond).String()}
	for _, difference := range listDifferences(sinks, keys, config.DiffAdminTokens(r.applied, cfg)) {
		attrs = append(attrs, strings.ReplaceAll(difference.title, " ", "_"), difference.names)
	}
	log.Info("configuration was applied", append(attrs, "sinks_kept", c.Kept, "keys_kept", keys.Kept)...)
	if len(c.Stopping) > 0 {
		log.Info("changed and removed sinks are still stopping", "sinks", c.Stopping)
	}
	for _, w := range config.NewWarnings(r.applied, cfg) {
		log.Warn("configuration has a warning", "warning", w.String())
	}
	if len(restartRequired) > 0 {
		log.Warn("some configuration changes require a restart", "settings", restartRequired)
	}
	if len(c.Removed) > 0 {
		log.Warn("queues of removed sinks are kept until 'hubrelay sinks forget', events that still wait in the log only as long as "+
			"redis.retention allows", "sinks", c.Removed)
	}
}

// difference contains the names of sinks, keys or admin tokens with the same change.
type difference struct {
	title string
	names []string
}

// listDifferences returns the differences that exist.
func listDifferences(sinks, keys, tokens config.Changes) []difference {
	list := []difference{
		{"sinks added", sinks.Added},
		{"sinks changed", sinks.Changed},
		{"sinks removed", sinks.Removed},
		{"keys added", keys.Added},
		{"keys changed", keys.Changed},
		{"keys removed", keys.Removed},
		{"admin tokens added", tokens.Added},
		{"admin tokens changed", tokens.Changed},
		{"admin tokens removed", tokens.Removed},
	}
	return slices.DeleteFunc(list, func(d difference) bool { return len(d.names) == 0 })
}

// preflightTime limits the trials during a reload. A removed key remains valid for at most this time.
const preflightTime = 10 * time.Second

// tryChangedSinks tries the sinks that are new or have changed. Sinks that do not finish in time are applied anyway, as
// at a start.
func (r *reloader) tryChangedSinks(ctx context.Context, cfg *config.Config) error {
	ctx, cancel := context.WithTimeout(ctx, preflightTime)
	defer cancel()
	warnings, err := cfg.Preflight(ctx, func(path string) bool {
		name, ok := strings.CutPrefix(path, "sinks.")
		return ok && r.deliveries.HasNewSettings(name, cfg.Sinks[name])
	})
	cfg.Warnings = append(cfg.Warnings, warnings...)
	return err
}

// describeProblems returns the problems of a configuration on one line.
func describeProblems(err error) string {
	var problems yamldoc.Problems
	if !errors.As(err, &problems) {
		return err.Error()
	}
	list := make([]string, len(problems))
	for i, p := range problems {
		list[i] = p.String()
	}
	return strings.Join(list, "; ")
}
