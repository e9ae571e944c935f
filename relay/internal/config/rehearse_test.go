package config_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/config"
)

// slowValidator needs some time to validate samples, or blocks until ctx ends.
type slowValidator struct {
	Takes time.Duration `koanf:"takes" doc:"Duration of the validation."`
	Bad   bool          `koanf:"bad" doc:"Report an error."`
}

func (s *slowValidator) Check(ctx context.Context, env relay.CheckEnv) relay.Report {
	if env.Samples == nil {
		return relay.Report{}
	}
	if len(env.Samples()) == 0 {
		return relay.NewReport(errors.New("has no samples"))
	}
	select {
	case <-time.After(s.Takes):
	case <-ctx.Done():
	}
	if s.Bad {
		return relay.NewReport(errors.New("has a mistake"))
	}
	return relay.Report{}
}

// The time limit applies to all sinks together. A warning names each sink whose validation did not finish.
func TestLoad_LimitsSampleValidation(t *testing.T) {
	file := writeConfig(t, keys+`sinks:
  a: {type: slow, takes: 1h}
  b: {type: slow, takes: 1s}
  c: {type: slow, takes: 1h}
  d: {type: slow}
  e: {type: slow, takes: 1h, topics: [job.created]}
`)
	bad := writeConfig(t, keys+"sinks: {a: {type: slow, takes: 1h}, b: {type: slow, takes: 1h, bad: true}}\n")
	slow := config.Kinds{
		Sinks: []relay.SinkKind{{Type: "slow", Config: func() relay.Config { return &slowValidator{} }}},
	}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		cfg, err := config.Load(file, nil, slow)
		if err != nil {
			t.Fatal(err)
		}
		if elapsed := time.Since(start); elapsed != 9*time.Second { // 5s, 1s, and twice half of the remaining time
			t.Errorf("Load took %s, want 9s", elapsed)
		}
		var skipped []string
		for _, w := range cfg.Warnings {
			if strings.Contains(w.Message, "not tried with all samples: the time limit for all sinks is 10s") {
				skipped = append(skipped, w.Path)
			}
			if !strings.Contains(w.Hint, "simplify the templates of sinks.a") {
				t.Errorf("got hint %s", w.Hint)
			}
		}
		if got := strings.Join(skipped, " "); got != "sinks.a sinks.c sinks.e" {
			t.Errorf("got skipped sinks %s", got)
		}
		if _, err := config.Load(bad, nil, slow); err == nil ||
			!strings.Contains(err.Error(), "sinks.b: has a mistake") {
			t.Errorf("got %v, want the error of sinks.b", err)
		}
	})
}
