package slack

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

// operational contains the additional data of the relay's own notifications. Their object is a sink, a delivery of a
// sink, or a source.
type operational struct {
	Sink  string `json:"sink"`
	Topic string `json:"topic"`
	Count int    `json:"count"`
}

// operationalOf returns nil for a notification of another producer.
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

// deadLetterCount returns the number of dead letters that e reports, or zero.
func (e *event) deadLetterCount() int {
	if e.operational == nil || e.Topic != relay.TopicDeadLetterCreated {
		return 0
	}
	return max(e.operational.Count, 1)
}

// deadLettersText returns the text for more than one dead letter.
func deadLettersText(count int) string {
	return fmt.Sprintf("%d deliveries were given up and became dead letters", count)
}

// meaningText returns the meaning without the sink, with the count if one notification stands for several events.
func (e *event) meaningText() string {
	if n := e.deadLetterCount(); n > 1 {
		return deadLettersText(n)
	}
	return e.meaning
}

// headlineText returns the meaning with the sink instead of the state.
func (o *operational) headlineText(e *event) string {
	text := e.meaningText()
	if sink := cleanLine(o.Sink); sink != "" {
		text += ": " + sink
	}
	return text
}

// listIdentifiers returns the identifiers of the sink instead of the identifiers of the object.
func (o *operational) listIdentifiers(e *event) []identifier {
	what := "Sink"
	if e.Topic == relay.TopicSourceGap {
		what = "Source"
	}
	list := []identifier{singleIdentifier(what, o.Sink)}
	if o.Sink != e.Object.ID {
		list = append(list, singleIdentifier("Dead delivery", e.Object.ID), singleIdentifier("Its topic", o.Topic))
	}
	return list
}
