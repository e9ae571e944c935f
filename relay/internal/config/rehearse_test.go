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

// rehearser takes its time for samples, or until the end of what it gets.
type rehearser struct {
	Takes time.Duration `koanf:"takes" doc:"How long it takes."`
	Bad   bool          `koanf:"bad" doc:"Whether there is a mistake."`
}

func (r *rehearser) Validate() error { return nil }

func (r *rehearser) ValidateSamples(ctx context.Context, _ string, list []relay.Delivery) error {
	if len(list) == 0 {
		return errors.New("has no samples")
	}
	select {
	case <-time.After(r.Takes):
	case <-ctx.Done():
	}
	if r.Bad {
		return errors.New("has a mistake")
	}
	return nil
}

// TestRehearsalTime has sinks that take long to try samples: all of them together do not, and whoever had too little time is named.
func TestRehearsalTime(t *testing.T) {
	file := write(t, keys+`sinks:
  a: {type: slow, takes: 1h}
  b: {type: slow, takes: 1s}
  c: {type: slow, takes: 1h}
  d: {type: slow}
  e: {type: slow, takes: 1h, topics: [job.created]}
`)
	bad := write(t, keys+"sinks: {a: {type: slow, takes: 1h}, b: {type: slow, takes: 1h, bad: true}}\n")
	slow := config.Kinds{Sinks: []relay.SinkKind{{Type: "slow", Config: func() relay.SinkConfig { return &rehearser{} }}}}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		cfg, err := config.Load(file, nil, slow)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 9*time.Second { // 5, 1, and twice the half of what is left
			t.Errorf("took %s", took)
		}
		var told []string
		for _, w := range cfg.Warnings {
			if strings.Contains(w.Message, "not tried with all samples: there are 10s") {
				told = append(told, w.Path)
			}
			if !strings.Contains(w.Hint, "of sinks.a less to do") {
				t.Errorf("the hint is %s", w.Hint)
			}
		}
		if got := strings.Join(told, " "); got != "sinks.a sinks.c sinks.e" {
			t.Errorf("named are %s", got)
		}
		if _, err := config.Load(bad, nil, slow); err == nil || !strings.Contains(err.Error(), "sinks.b: has a mistake") {
			t.Errorf("a mistake that was found gave %v", err)
		}
	})
}
