package config_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/config"
)

// silent says nothing until it has to.
type silent struct{ asked *atomic.Int64 }

func (silent) Validate() error { return nil }

func (s silent) Preflight(ctx context.Context, _ string) ([]relay.FieldError, error) {
	s.asked.Add(1)
	<-ctx.Done()
	return []relay.FieldError{{Field: "command", Problem: "gave no answer"}}, nil
}

// Behind the end of the time nobody is asked any more, and each who was not is named.
func TestPreflightTime(t *testing.T) {
	atOnce := 2 * runtime.GOMAXPROCS(0)
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		cfg := &config.Config{Sinks: map[string]config.Sink{}}
		for i := range 3 * atOnce {
			cfg.Sinks[fmt.Sprintf("s%d", i)] = config.Sink{Settings: silent{&asked}}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		warnings, err := cfg.Preflight(ctx, func(string) bool { return true })
		if took := time.Since(began); err != nil || took != 3*time.Second {
			t.Errorf("it took %s and gave %v", took, err)
		}
		told := 0
		for _, w := range warnings {
			if strings.Contains(w.String(), "was not asked: there was no time") {
				told++
			}
		}
		if int(asked.Load()) != atOnce || told != 2*atOnce || len(warnings) != 3*atOnce {
			t.Errorf("%d were asked, and %d of %d warnings say that there was no time", asked.Load(), told, len(warnings))
		}
	})
}
