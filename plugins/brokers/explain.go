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

// messageExplainer shows a message as consumers receive it: first its topic or the like, then its headers, then the
// payload. It uses the code that publishes.
type messageExplainer func(s *Sink, name string, m *message.Message) (relay.Preview, error)

// Preview shows the messages of a delivery. It does not dial and does not need Start.
func (s *Sink) Preview(d relay.Delivery) (relay.Preview, error) {
	if err := s.buildFromConfig(); err != nil {
		return relay.Preview{}, err
	}
	var list []relay.Preview
	for _, one := range splitBatch(d) {
		m, v, err := newMessage(context.Background(), one)
		if err != nil {
			return relay.Preview{}, err
		}
		name, err := s.name.expand(v)
		if err != nil {
			return relay.Preview{}, err
		}
		shown, err := s.kind.explain(s, name, m)
		if err != nil {
			return relay.Preview{}, fmt.Errorf("%s: %w", s.config.Broker, err)
		}
		shown.Method = "publish"
		shown.Target = fmt.Sprintf("to %s at %s", s.config.Broker, strings.Join(s.config.hostPorts(), ", "))
		list = append(list, shown)
	}
	if len(list) == 0 {
		return relay.Preview{}, fmt.Errorf("the delivery %s is empty", d.ID)
	}
	list[0].Followups = list[1:]
	return list[0], nil
}

// sortedHeaders sorts headers by name, so people can compare them.
func sortedHeaders(all map[string]string) []relay.Header {
	list := make([]relay.Header, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, relay.Header{Name: name, Value: all[name]})
	}
	return list
}
