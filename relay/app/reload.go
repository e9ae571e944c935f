package app

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay/backbone"
	"github.com/hubrelay/hubrelay/relay/config"
	"github.com/hubrelay/hubrelay/relay/document"
	"github.com/hubrelay/hubrelay/relay/hub"
)

// configEvery is how often the configuration file is looked at; a change is taken over when two looks saw the same.
const configEvery = time.Second

// Reloading is how the daemon comes to another configuration while it runs.
type Reloading struct {
	// File is looked at every second; empty where there is none.
	File string
	// Load reads the configuration anew. Its [document.Problems] are logged one by one.
	Load func() (*config.Config, error)
	// Asked has it read at once.
	Asked <-chan struct{}
	// Level takes over log.level.
	Level func(string)
}

// followConfig takes over changes of the configuration until ctx ends. A configuration that cannot be taken over changes
// nothing; where that is because Redis is away, it is tried again.
func (a *App) followConfig(ctx context.Context, b *backbone.Backbone, clients *hub.Hub) error {
	watch := config.NewWatch(a.set.Reload.File)
	tick := time.NewTicker(configEvery)
	defer tick.Stop()
	for again := false; ; {
		asked := again
		select {
		case <-ctx.Done():
			return nil
		case <-a.set.Reload.Asked:
			watch.Skip()
			asked = true
		case <-tick.C:
			asked = watch.Changed() || asked
		}
		if !asked {
			continue
		}
		cfg, err := a.set.Reload.Load()
		if err == nil {
			err = a.reload(ctx, cfg, b, clients)
		}
		if ctx.Err() != nil {
			return nil
		}
		var away *awayError
		if away := errors.As(err, &away); !away || !again {
			a.sayReloaded(cfg, err)
		}
		again = errors.As(err, &away)
	}
}

// awayError says that a configuration could not be taken over because of Redis.
type awayError struct{ error }

func (e *awayError) Unwrap() error { return e.error }

func (a *App) sayReloaded(cfg *config.Config, err error) {
	a.metrics.Reloaded(err == nil)
	var problems document.Problems
	var away *awayError
	switch {
	case errors.As(err, &problems):
		for _, p := range problems {
			a.log.Error("the configuration was not taken over", "problem", p.String())
		}
		a.log.Error("the configuration has mistakes; what ran before goes on", "mistakes", len(problems))
	case errors.As(err, &away):
		a.log.Error("the configuration is taken over once Redis answers; what ran before goes on", "error", err)
	case err != nil:
		a.log.Error("the configuration was not taken over; what ran before goes on", "error", err)
	default:
		for _, w := range cfg.Warnings {
			a.log.Warn("configuration", "warning", w.String())
		}
	}
}

// change is what another configuration means for the sinks.
type change struct {
	added, changed, removed []*sink // of changed the new ones
	kept                    []*sink
}

func (c *change) opened() []*sink { return slices.Concat(c.added, c.changed) }

// diff opens the sinks that are new or have changed.
func (a *App) diff(cfg *config.Config) (*change, error) {
	c := &change{}
	fresh := make(map[string]config.Sink)
	for name, s := range cfg.Sinks {
		if before := a.sinks.named(name); before != nil && reflect.DeepEqual(before.cfg, s) {
			c.kept = append(c.kept, before)
			continue
		}
		fresh[name] = s
	}
	for _, before := range a.sinks.all() {
		if _, stays := cfg.Sinks[before.name]; !stays {
			c.removed = append(c.removed, before)
		}
	}
	opened, err := openSinks(fresh, a.set, a.metrics)
	if err != nil {
		return nil, err
	}
	for _, s := range opened {
		if a.sinks.named(s.name) != nil {
			c.changed = append(c.changed, s)
		} else {
			c.added = append(c.added, s)
		}
	}
	return c, nil
}

// reload takes over the sinks, the keys and the level of the log. After an error nothing has changed.
func (a *App) reload(ctx context.Context, cfg *config.Config, b *backbone.Backbone, clients *hub.Hub) error {
	d := a.delivery
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if d.over || d.ctx == nil {
		return errStopping
	}
	began := time.Now()
	c, err := a.diff(cfg)
	if err != nil {
		return err
	}
	for partition := range b.Keys().Partitions() {
		if err := joinSinks(ctx, b, partition, c.added); err != nil {
			return errors.Join(&awayError{err}, closeAll(c.opened()))
		}
	}
	if err := a.keys.configure(cfg.Auth.Keys); err != nil {
		return errors.Join(err, closeAll(c.opened()))
	}
	clients.Recheck()
	a.set.Reload.Level(cfg.Log.Level)

	all := slices.Concat(c.kept, c.opened())
	slices.SortFunc(all, func(a, b *sink) int { return strings.Compare(a.name, b.name) })
	warnOfRates(a.log, all)
	for _, s := range c.added {
		a.metrics.Expect(s.name)
	}
	matcher := newMatcher(all)
	for _, one := range a.dispatchers {
		one.Reload(matcher)
	}
	err = d.change(c)
	a.notices.Listen(a.listeners())
	a.log.Info("the configuration was taken over", "took", time.Since(began).Round(time.Millisecond).String(), "sinks_added", names(c.added), "sinks_changed", names(c.changed),
		"sinks_removed", names(c.removed), "sinks_kept", len(c.kept))
	if later := config.Differences(a.cfg, cfg); len(later) > 0 {
		a.log.Warn("some changes of the configuration take effect at the next start", "keys", later)
	}
	if len(c.removed) > 0 {
		a.log.Warn("what waits for sinks that left the configuration is kept, until they come back or 'hubrelay sinks forget'",
			"sinks", names(c.removed))
	}
	if err != nil {
		a.log.Warn("sinks did not close well", "error", err)
	}
	return nil
}

func names(sinks []*sink) []string {
	list := make([]string, len(sinks))
	for i, s := range sinks {
		list[i] = s.name
	}
	return list
}

// change brings the sinks that run in line, each by itself, so that one whose attempts take their time holds up no other.
// The caller holds turn. The error is of sinks that did not close well.
func (d *delivery) change(c *change) error {
	var errs []error
	for _, s := range c.added {
		errs = append(errs, d.put(s))
	}
	var roster sync.Mutex
	former := slices.Clone(c.removed)
	for _, s := range c.changed {
		former = append(former, d.app.sinks.named(s.name))
	}
	errs = append(errs, each(len(former), func(i int) error {
		err := d.end(former[i])
		roster.Lock()
		defer roster.Unlock()
		if i >= len(c.removed) {
			return errors.Join(err, d.put(c.changed[i-len(c.removed)]))
		}
		d.app.sinks.replace([]string{former[i].name})
		d.app.metrics.Forget(former[i].name)
		return err
	}))
	return errors.Join(errs...)
}

// put puts a sink into the roster, in place of one of its name that has ended, and begins to deliver to it.
func (d *delivery) put(s *sink) error {
	if err := d.prepare(s); err != nil {
		return err
	}
	d.app.sinks.replace([]string{s.name}, s)
	d.launch(s)
	return nil
}
