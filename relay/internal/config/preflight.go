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

// Preflight tries what only a trial can tell of ([relay.Preflight]), a few at once: of the sinks those that tries names by
// "sinks.NAME", and the driver of migrations as "migration.driver". What the user got wrong is returned as [Problems]. It ends
// soon after ctx, and begins no trial behind that; what could not be found out by then is a warning.
func (c *Config) Preflight(ctx context.Context, tries func(path string) bool) ([]Problem, error) {
	l := &loader{converter: &converter{Reporter: &yamldoc.Reporter{File: c.file, Origins: c.origins}}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, 2*runtime.GOMAXPROCS(0))
	try := func(path, name string, settings any) {
		p, ok := settings.(relay.Preflight)
		if !ok || !tries(path) {
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
			late := ctx.Err() != nil
			if !late {
				warnings, err = p.Preflight(ctx, name)
			}
			mu.Lock()
			defer mu.Unlock()
			if late {
				l.Warn(path, "was not asked: there was no time", "")
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
