package main

import (
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// An instance is flapping that has changed so often in so short a time.
const (
	flapChanges = 4
	flapWithin  = 10 * time.Minute
)

// seen is what is known of an instance after a notification.
type seen struct {
	Instance string `json:"instance"`
	State    string `json:"state,omitempty"`
	Health   string `json:"health,omitempty"`
	Flapping bool   `json:"flapping"`
}

type instance struct {
	state, health string
	changes       []time.Time // the latest ones, at most flapChanges
}

// watch remembers instances. It is used by one goroutine at a time.
type watch struct{ instances map[string]*instance }

func newWatch() *watch { return &watch{instances: map[string]*instance{}} }

func (w *watch) see(e relay.Envelope, at time.Time) seen {
	i := w.instances[e.Object.ID]
	if i == nil {
		i = &instance{}
		w.instances[e.Object.ID] = i
	}
	changed := false
	switch {
	case e.Topic == "container.instance.health.status.changed":
		changed, i.health = i.health != "" && i.health != e.Object.State, e.Object.State
	case strings.HasSuffix(e.Topic, ".state.changed"):
		changed, i.state = i.state != "" && i.state != e.Object.State, e.Object.State
	}
	if changed {
		if i.changes = append(i.changes, at); len(i.changes) > flapChanges {
			i.changes = i.changes[1:]
		}
	}
	flapping := len(i.changes) == flapChanges && at.Sub(i.changes[0]) <= flapWithin
	return seen{Instance: e.Object.ID, State: i.state, Health: i.health, Flapping: flapping}
}
