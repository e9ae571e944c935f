package brokers

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/hubrelay/hubrelay/relay"
)

// Names of headers, properties or metadata, depending on the broker. The ID is also Watermill's UUID.
const (
	headerID      = "hubrelay-id"
	headerTopic   = "hubrelay-topic"
	headerHub     = "hubrelay-hub"
	headerAccount = "hubrelay-account"
	headerType    = "content-type"
	headerKey     = "hubrelay-container" // only if the notification has exactly one container
)

const contentType = "application/json"

// newMessage converts a delivery. The payload has the same bytes in every attempt.
func newMessage(ctx context.Context, d relay.Delivery) (*message.Message, nameValues, error) {
	payload, err := d.Payload()
	if err != nil {
		return nil, nameValues{}, err
	}
	v := newNameValues(d)
	m := message.NewMessageWithContext(ctx, d.ID, message.Payload(payload))
	m.Metadata = message.Metadata{headerID: d.ID, headerTopic: v.topic, headerType: contentType}
	if v.hub != "" {
		m.Metadata[headerHub] = v.hub
	}
	if v.account != "" {
		m.Metadata[headerAccount] = v.account
	}
	if d.Digest == nil {
		// A notification that cannot be parsed is published without a container.
		if e, err := d.Notifications[0].Envelope(); err == nil && len(e.Context.Containers) == 1 {
			m.Metadata[headerKey] = e.Context.Containers[0]
		}
	}
	return m, v, nil
}

// newNameValues returns the placeholder values of a delivery. A digest has a hub or an account only if all its
// notifications share it.
func newNameValues(d relay.Delivery) nameValues {
	first := d.Notifications[0]
	v := nameValues{topic: first.Topic, hub: first.Hub, account: first.Account}
	if d.Digest == nil {
		return v
	}
	v.topic = relay.TopicDigest
	if d.Digest.Count > len(d.Notifications) && d.Digest.Shared["hub"] == "" {
		return nameValues{topic: v.topic} // notifications that are only counted may have others
	}
	for _, n := range d.Notifications[1:] {
		if n.Hub != v.hub {
			v.hub = ""
		}
		if n.Account != v.account {
			v.account = ""
		}
	}
	return v
}
