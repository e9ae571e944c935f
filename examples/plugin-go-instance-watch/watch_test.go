package main

import (
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

func TestFlapping(t *testing.T) {
	const state, health = "container.instance.state.changed", "container.instance.health.status.changed"
	for name, c := range map[string]struct {
		every    time.Duration
		topic    string
		values   []string
		flapping bool
	}{
		"back and forth": {
			time.Minute, health,
			[]string{"healthy", "unhealthy", "healthy", "unhealthy", "healthy"},
			true,
		},
		"slowly": {
			time.Hour, health,
			[]string{"healthy", "unhealthy", "healthy", "unhealthy", "healthy"},
			false,
		},
		"the same": {time.Second, state, []string{"running", "running", "running", "running", "running"}, false},
		"not yet":  {time.Second, state, []string{"running", "stopped", "running", "stopped"}, false},
	} {
		w, at := newWatch(), time.Unix(1_800_000_000, 0)
		var got seen
		for _, value := range c.values {
			w.see(relay.Envelope{Topic: c.topic, Object: relay.Object{ID: "other", State: "x"}}, at)
			got = w.see(relay.Envelope{Topic: c.topic, Object: relay.Object{ID: "web-1", State: value}}, at)
			at = at.Add(c.every)
		}
		if got.Flapping != c.flapping || got.State+got.Health != c.values[len(c.values)-1] {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestConfig(t *testing.T) {
	if (&config{}).Validate() == nil || (&config{Report: "x"}).Validate() != nil {
		t.Error("a report is needed, and nothing else")
	}
}
