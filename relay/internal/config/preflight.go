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

// Preflight runs the trials of [relay.Preflight], a few in parallel. The function selected receives the path of
// each trial and reports whether to run it: "sinks.NAME" for a sink, "migration.driver" for the driver. Invalid
// values are returned as [Problems].
//
// Preflight ends soon after ctx. It starts no trial after that, and returns a warning for each trial that it
// skipped.
func (c *Config) Preflight(ctx context.Context, selected func(path string) bool) ([]Problem, error) {
	l := &loader{converter: &converter{Reporter: &yamldoc.Reporter{File: c.file, Origins: c.origins}}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, 2*runtime.GOMAXPROCS(0))
	try := func(path, name string, settings any) {
		p, ok := settings.(relay.Preflight)
		if !ok || !selected(path) {
			return
		}
		wg.Go(func() {
			var warnings []relay.FieldError
			var err error
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
			case <-ctx.Done():
			}
			expired := ctx.Err() != nil
			if !expired {
				warnings, err = p.Preflight(ctx, name)
			}
			mu.Lock()
			defer mu.Unlock()
			if expired {
				l.Warn(path, "was not tried: the time limit was reached", "")
			}
			for _, w := range warnings {
				l.Warn(path+"."+bracketPath(w.Field), w.Problem, "")
			}
			if err != nil {
				l.reportInvalid(path, err)
			}
		})
	}
	for _, name := range slices.Sorted(maps.Keys(c.Sinks)) {
		try("sinks."+name, name, c.Sinks[name].Settings)
	}
	if driver := c.Migration.Driver; driver.IsSet() {
		try("migration.driver", "driver", driver.Settings)
	}
	wg.Wait()
	warnings := yamldoc.Sorted(l.Warnings)
	if len(l.Problems) > 0 {
		return warnings, Problems(yamldoc.Sorted(l.Problems))
	}
	return warnings, nil
}
