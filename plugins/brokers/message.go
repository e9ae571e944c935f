package brokers

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/hubrelay/hubrelay/relay"
)

// What travels beside the payload, as headers, properties or metadata. The id is also Watermill's UUID.
const (
	headerID      = "hubrelay-id"
	headerTopic   = "hubrelay-topic"
	headerHub     = "hubrelay-hub"
	headerAccount = "hubrelay-account"
	headerType    = "content-type"
	headerKey     = "hubrelay-container" // the one container that a notification concerns
)

const contentType = "application/json"

// newMessage is a delivery as brokers get it: the same bytes in every attempt. It fails for what cannot be sent.
func newMessage(ctx context.Context, d relay.Delivery) (*message.Message, values, error) {
	payload, err := d.Payload()
	if err != nil {
		return nil, values{}, err
	}
	v := valuesOf(d)
	m := message.NewMessageWithContext(ctx, d.ID, message.Payload(payload))
	m.Metadata = message.Metadata{headerID: d.ID, headerTopic: v.topic, headerType: contentType}
	if v.hub != "" {
		m.Metadata[headerHub] = v.hub
	}
	if v.account != "" {
		m.Metadata[headerAccount] = v.account
	}
	if d.Digest == nil {
		// What cannot be looked into concerns no container, and is published all the same.
		if e, err := d.Notifications[0].Envelope(); err == nil && len(e.Context.Containers) == 1 {
			m.Metadata[headerKey] = e.Context.Containers[0]
		}
	}
	return m, v, nil
}

// valuesOf says whom a delivery concerns; a digest has a hub and an account only where all that it lists have the same.
func valuesOf(d relay.Delivery) values {
	first := d.Notifications[0]
	v := values{topic: first.Topic, hub: first.Hub, account: first.Account}
	if d.Digest == nil {
		return v
	}
	v.topic = relay.TopicDigest
	if d.Digest.Count > len(d.Notifications) && d.Digest.Shared["hub"] == "" {
		return values{topic: v.topic} // what is only counted may be of others
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
