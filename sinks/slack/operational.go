package slack

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

// operational is what the relay's own notifications say besides. Their object is a sink, or a delivery of one.
type operational struct {
	Sink  string `json:"sink"`
	Topic string `json:"topic"`
	Count int    `json:"count"`
}

// operationalOf is nil for a notification that is not the relay's own.
func operationalOf(e *event) *operational {
	if !strings.HasPrefix(e.Topic, relay.OperationalPrefix) {
		return nil
	}
	var members struct {
		Object operational `json:"object"`
	}
	if json.Unmarshal(e.data, &members) != nil {
		members.Object = operational{}
	}
	o := &members.Object
	if o.Sink == "" && e.Topic != relay.TopicDeadLetterCreated {
		o.Sink = e.Object.ID
	}
	return o
}

// headline names the sink, which says more than the state.
func (o *operational) headline(e *event) string {
	text := e.what
	if o.Count > 1 && e.Topic == relay.TopicDeadLetterCreated {
		text = fmt.Sprintf("%d deliveries were given up and became dead letters", o.Count)
	}
	if sink := clean(o.Sink); sink != "" {
		text += ": " + sink
	}
	return text
}

// identifiers are those of the sink in place of the object.
func (o *operational) identifiers(e *event) []identifier {
	list := []identifier{named("Sink", o.Sink)}
	if o.Sink != e.Object.ID {
		list = append(list, named("Dead delivery", e.Object.ID), named("Its topic", o.Topic))
	}
	return list
}
