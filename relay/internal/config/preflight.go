package config

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"sync"

	"github.com/hubrelay/hubrelay/internal/yamldoc"
	"github.com/hubrelay/hubrelay/relay"
)

// Preflight checks the settings that need a probe, such as the start of a plugin, a few in parallel. The function
// selected receives the path of each and reports whether to check it: "sinks.NAME" for a sink, "migration.driver" for
// the driver. Invalid values are returned as [Problems].
//
// Preflight ends soon after ctx. It starts no check after that, and returns a warning for each that it skipped.
func (c *Config) Preflight(ctx context.Context, selected func(path string) bool) ([]Problem, error) {
	l := &loader{converter: &converter{Reporter: &yamldoc.Reporter{File: c.file, Origins: c.origins}}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, 2*runtime.GOMAXPROCS(0))
	probe := func(path, name string, settings relay.Config) {
		if !selected(path) {
			return
		}
		wg.Go(func() {
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
			case <-ctx.Done():
			}
			var report relay.Report
			expired := ctx.Err() != nil
			if !expired {
				report = settings.Check(ctx, relay.CheckEnv{Name: name, Dir: c.Dir(), Probe: true})
			}
			mu.Lock()
			defer mu.Unlock()
			if expired {
				l.Warn(path, "was not tried: the time limit was reached", "")
			}
			l.addWarnings(path, report.Warnings)
			l.addErrors(path, report.Errors)
		})
	}
	for _, name := range slices.Sorted(maps.Keys(c.Sinks)) {
		if c.Sinks[name].Probes {
			probe("sinks."+name, name, c.Sinks[name].Settings)
		}
	}
	if driver := c.Migration.Driver; driver.IsSet {
		probe("migration.driver", "driver", driver.Settings)
	}
	wg.Wait()
	warnings := yamldoc.Sorted(l.Warnings)
	if len(l.Problems) > 0 {
		return warnings, Problems(yamldoc.Sorted(l.Problems))
	}
	return warnings, nil
}
