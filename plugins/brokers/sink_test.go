package brokers

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/eclipse/paho.golang/packets"
)

// refusing ends behind its answer, as Mosquitto does where a rule forbids a topic.
type refusing struct{ cancelableLifetime }

func (r *refusing) Publish(string, ...*message.Message) error {
	r.kill(io.EOF)
	return &mqttRefusal{packets.ConnackNotAuthorized}
}

func (*refusing) Close() error { return nil }

func TestRefusalCountsThoughTheConnectionEnds(t *testing.T) {
	t.Parallel()
	for range 100 {
		s := New(&Config{Broker: MQTT, Addresses: []string{"127.0.0.1:1883"}, User: testUser})
		if err := s.buildFromConfig(); err != nil {
			t.Fatal(err)
		}
		s.link = newLink(func(context.Context) (brokerConn, error) { return &refusing{newMortal()}, nil }, slog.New(slog.DiscardHandler))
		err := s.Deliver(t.Context(), delivery(1))
		if err == nil || !strings.Contains(err.Error(), "is not authorized") {
			t.Fatalf("the operator reads: %v", err)
		}
		_ = s.Stop(t.Context())
	}
}

func TestFullIsSaidOnlyOfWhatIsFull(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		if err := New(&Config{}).acquireSlot(ended); err != nil {
			t.Fatalf("of %d free slots: %v", maxPublishing, err)
		}
	}
	s := New(&Config{})
	for range maxPublishing {
		s.slots <- struct{}{}
	}
	if err := s.acquireSlot(ended); err == nil || !strings.Contains(err.Error(), "was not sent") {
		t.Errorf("got %v", err)
	}
}
