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

// silentPreflight blocks until ctx ends.
type silentPreflight struct{ calls *atomic.Int64 }

func (s silentPreflight) Check(ctx context.Context, _ relay.CheckEnv) relay.Report {
	s.calls.Add(1)
	<-ctx.Done()
	return relay.NewReport(nil, relay.FieldError{Field: "command", Problem: "gave no answer"})
}

// After the deadline no further trial starts. A warning names each sink that was not tried.
func TestPreflight_SkipsTrialsAfterDeadline(t *testing.T) {
	parallel := 2 * runtime.GOMAXPROCS(0)
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		cfg := &config.Config{Sinks: map[string]config.Sink{}}
		for i := range 3 * parallel {
			cfg.Sinks[fmt.Sprintf("s%d", i)] = config.Sink{Settings: silentPreflight{&calls}, Probes: true}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		warnings, err := cfg.Preflight(ctx, func(string) bool { return true })
		if elapsed := time.Since(start); err != nil || elapsed != 3*time.Second {
			t.Errorf("Preflight took %s and returned %v, want 3s and no error", elapsed, err)
		}
		skipped := 0
		for _, w := range warnings {
			if strings.Contains(w.String(), "was not tried: the time limit was reached") {
				skipped++
			}
		}
		if int(calls.Load()) != parallel || skipped != 2*parallel || len(warnings) != 3*parallel {
			t.Errorf("got %d calls, %d skipped trials in %d warnings", calls.Load(), skipped,
				len(warnings))
		}
	})
}
