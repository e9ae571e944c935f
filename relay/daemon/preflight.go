package daemon

import (
	"context"
	"reflect"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/config"
)

// preflightTime is how long a reload waits for what is tried first: no key that has left stays good for longer.
const preflightTime = 3 * time.Second

// preflight tries the sinks that are new or have changed. What did not answer in time is taken over, as at a start.
func (a *App) preflight(ctx context.Context, cfg *config.Config) error {
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
