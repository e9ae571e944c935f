package brokers

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hubrelay/hubrelay/relay"
)

// newHubDelivery returns a delivery whose routing key is the hub.
func newHubDelivery(hub string) relay.Delivery {
	d := newDelivery(1)
	d.Notifications[0].Hub = hub
	return d
}

// A rejected routing key closes the shared channel once. All unconfirmed messages then share one other channel, and later
// messages with the rejected routing key fail alone.
func TestAMQP_RejectedRoutingKey(t *testing.T) {
	t.Parallel()
	const innocent = 50
	var mu sync.Mutex
	var unconfirmed []fakePublish // on the first channel
	byChannel := map[int][]string{}
	permitted := false
	f := startFakeRabbitMQ(t, func(p fakePublish) {
		mu.Lock()
		defer mu.Unlock()
		byChannel[p.channel] = append(byChannel[p.channel], p.key)
		switch {
		case p.channel == 1:
			if unconfirmed = append(unconfirmed, p); len(unconfirmed) == innocent+1 {
				p.key = "forbidden"
				p.reject()
			}
		case p.key == "forbidden" && !permitted:
			p.reject()
		default:
			p.ack()
		}
	}, nil)
	messagesOf := func(channel int) []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(byChannel[channel])
	}
	s := startSink(t, f.config())
	expectRejected := func() {
		err := rig{}.deliver(t, s, newHubDelivery("forbidden"))
		if outcome, _ := relay.Classify(err); err == nil || outcome != relay.OutcomeRetry ||
			!strings.Contains(err.Error(), "topic permission") {
			t.Errorf("forbidden routing key: got %v, want a retry about the topic permission", err)
		}
	}
	expectSuccess := func() {
		if err := (rig{}).deliver(t, s, newHubDelivery("allowed")); err != nil {
			t.Errorf("allowed routing key: got %v", err)
		}
	}
	var all sync.WaitGroup
	all.Go(expectRejected)
	for range innocent {
		all.Go(expectSuccess)
	}
	all.Wait()
	if got := f.openedChannels(); got > 3 { // the shared one, and the other one before and after the rejection
		t.Errorf("%d unconfirmed messages: got %d channels, want at most 3", innocent, got)
	}
	before := f.openedChannels()
	for range innocent {
		all.Go(expectSuccess)
	}
	all.Wait()
	shared := f.openedChannels()
	if shared != before+1 {
		t.Errorf("got %d new channels for concurrent messages, want 1 shared channel", shared-before)
	}
	before = len(messagesOf(shared))
	for range 3 {
		expectRejected()
		expectSuccess()
	}
	if got := messagesOf(shared)[before:]; !slices.Equal(got, []string{"allowed", "allowed", "allowed"}) {
		t.Fatalf("got messages %q on the shared channel, want all later ones with the allowed routing key", got)
	}
	mu.Lock()
	permitted = true
	mu.Unlock()
	for range 2 {
		if err := (rig{}).deliver(t, s, newHubDelivery("forbidden")); err != nil {
			t.Errorf("routing key that is permitted again: got %v", err)
		}
	}
	if got := messagesOf(shared)[before+3:]; !slices.Equal(got, []string{"forbidden"}) {
		t.Errorf("got messages %q on the shared channel, want the second one with the permitted routing key", got)
	}
	if got := f.connections.Load(); got != 1 {
		t.Errorf("got %d connections, want 1", got)
	}
}

// Only the rejection of a routing key replaces the shared channel. After another error, the next attempt dials.
func TestAMQP_OtherChannelError(t *testing.T) {
	t.Parallel()
	f := startFakeRabbitMQ(t, func(p fakePublish) {
		if p.channel == 1 {
			p.closeChannel(amqp.NotFound, "NOT_FOUND - no exchange 'amq.topic' in vhost '/'")
			return
		}
		p.ack()
	}, nil)
	s := startSink(t, f.config())
	if err := (rig{}).deliver(t, s, newHubDelivery("a")); err == nil || !strings.Contains(err.Error(), "there is no exchange") {
		t.Errorf("got %v, want an error about the exchange", err)
	}
	if err := (rig{}).deliver(t, s, newHubDelivery("a")); err != nil {
		t.Errorf("next attempt: got %v", err)
	}
	if got := f.connections.Load(); got != 2 {
		t.Errorf("got %d connections, want 2", got)
	}
}

// The connection is lost while a channel is opened after a rejection: first the channel for messages alone, then the shared one.
func TestAMQP_ConnectionLostWhileOpeningChannel(t *testing.T) {
	t.Parallel()
	for lost := 2; lost <= 3; lost++ {
		f := startFakeRabbitMQ(t, fakePublish.reject, func(opened int) bool { return opened != lost })
		s := startSink(t, f.config())
		var err error
		for i := range lost - 1 { // the last attempt needs the lost channel
			err = rig{}.deliver(t, s, newHubDelivery(fmt.Sprint("forbidden", i)))
		}
		if err == nil || !strings.Contains(err.Error(), "the connection was lost before it acknowledged") {
			t.Errorf("connection lost with channel %d: got %v, want the loss", lost, err)
		}
	}
}

func TestRejectedKeys(t *testing.T) {
	t.Parallel()
	r, now := rejectedKeys{expires: map[string]time.Time{}}, time.Now()
	if r.containsKey("a", now) {
		t.Error("got a routing key that was not added")
	}
	r.add("a", now)
	if !r.containsKey("a", now.Add(rejectedKeyTime-1)) || r.containsKey("a", now.Add(rejectedKeyTime)) {
		t.Errorf("want an added routing key for exactly %s", rejectedKeyTime)
	}
	r.remove("a")
	if r.containsKey("a", now) {
		t.Error("got a removed routing key")
	}
	for i := range maxRejectedKeys + 10 {
		key := fmt.Sprint(i)
		r.add(key, now)
		if !r.containsKey(key, now) || len(r.expires) > maxRejectedKeys {
			t.Fatalf("got %d routing keys after %s, want at most %d", len(r.expires), key, maxRejectedKeys)
		}
	}
	r.add("late", now.Add(rejectedKeyTime))
	if len(r.expires) != 1 {
		t.Errorf("got %d routing keys, want none that has expired", len(r.expires)-1)
	}
}
