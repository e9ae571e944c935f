package daemon

import (
	"context"
	"reflect"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/config"
)

// preflightTime limits the trials during a reload. A removed key remains valid for at most this time.
const preflightTime = 10 * time.Second

// preflight tries the sinks that are new or have changed. Sinks that do not finish in time are applied anyway, as
// at a start.
func (a *Daemon) preflight(ctx context.Context, cfg *config.Config) error {
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
