package brokers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/hubrelay/hubrelay/relay"
)

// messageExplainer shows a message as consumers of the broker get it: where it goes first, then what travels beside the payload. It is
// made of what is published, by the same code.
type messageExplainer func(s *Sink, where string, m *message.Message) (relay.Explanation, error)

// Explain shows the messages of a delivery. It dials nobody and needs no Start.
func (s *Sink) Explain(d relay.Delivery) (relay.Explanation, error) {
	if err := s.buildFromConfig(); err != nil {
		return relay.Explanation{}, err
	}
	var list []relay.Explanation
	for _, one := range splitBatch(d) {
		m, v, err := newMessage(context.Background(), one)
		if err != nil {
			return relay.Explanation{}, err
		}
		where, err := s.name.expand(v)
		if err != nil {
			return relay.Explanation{}, err
		}
		shown, err := s.kind.explain(s, where, m)
		if err != nil {
			return relay.Explanation{}, fmt.Errorf("%s: %w", s.config.Broker, err)
		}
		shown.Method, shown.Target = "publish", fmt.Sprintf("to %s at %s", s.config.Broker, strings.Join(s.config.hostPorts(), ", "))
		list = append(list, shown)
	}
	if len(list) == 0 {
		return relay.Explanation{}, fmt.Errorf("the delivery %s is empty", d.ID)
	}
	list[0].Followups = list[1:]
	return list[0], nil
}

// sortedHeaders lists headers by name, since people compare them.
func sortedHeaders(all map[string]string) []relay.Header {
	list := make([]relay.Header, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, relay.Header{Name: name, Value: all[name]})
	}
	return list
}
