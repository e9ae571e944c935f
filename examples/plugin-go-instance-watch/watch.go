package main

import (
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// An instance is flapping after this number of changes in this time.
const (
	flapChanges = 4
	flapWindow  = 10 * time.Minute
)

// instanceState is the state of an instance after a notification.
type instanceState struct {
	Instance string `json:"instance"`
	State    string `json:"state,omitempty"`
	Health   string `json:"health,omitempty"`
	Flapping bool   `json:"flapping"`
}

type instance struct {
	state, health string
	changes       []time.Time // times of the last changes, at most flapChanges
}

// watch tracks instances. It is not safe for concurrent use.
type watch struct{ instances map[string]*instance }

func newWatch() *watch { return &watch{instances: map[string]*instance{}} }

// update applies an event and returns the new state of its instance.
func (w *watch) update(e relay.Envelope, at time.Time) instanceState {
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
	flapping := len(i.changes) == flapChanges && at.Sub(i.changes[0]) <= flapWindow
	return instanceState{Instance: e.Object.ID, State: i.state, Health: i.health, Flapping: flapping}
}
