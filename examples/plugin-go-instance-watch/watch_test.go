package main

import (
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

func TestWatch_Flapping(t *testing.T) {
	const state, health = "container.instance.state.changed", "container.instance.health.status.changed"
	for name, c := range map[string]struct {
		interval time.Duration
		topic    string
		values   []string
		flapping bool
	}{
		"alternating": {
			time.Minute, health,
			[]string{"healthy", "unhealthy", "healthy", "unhealthy", "healthy"},
			true,
		},
		"slow changes": {
			time.Hour, health,
			[]string{"healthy", "unhealthy", "healthy", "unhealthy", "healthy"},
			false,
		},
		"no change":       {time.Second, state, []string{"running", "running", "running", "running", "running"}, false},
		"too few changes": {time.Second, state, []string{"running", "stopped", "running", "stopped"}, false},
	} {
		w, at := newWatch(), time.Unix(1_800_000_000, 0)
		var got instanceState
		for _, value := range c.values {
			w.update(relay.Envelope{Topic: c.topic, Object: relay.Object{ID: "other", State: "x"}}, at)
			got = w.update(relay.Envelope{Topic: c.topic, Object: relay.Object{ID: "web-1", State: value}}, at)
			at = at.Add(c.interval)
		}
		if got.Flapping != c.flapping || got.State+got.Health != c.values[len(c.values)-1] {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestConfig_Validate(t *testing.T) {
	if (&config{}).Validate() == nil || (&config{Report: "x"}).Validate() != nil {
		t.Error("got a wrong result, want an error without a report only")
	}
}
