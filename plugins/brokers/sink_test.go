package brokers

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/eclipse/paho.golang/packets"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// rejectingConn ends directly after it rejected a message, like Mosquitto when a rule forbids a topic.
type rejectingConn struct{ cancelableLifetime }

func (r *rejectingConn) Publish(string, ...*message.Message) error {
	r.kill(io.EOF)
	return &mqttRejection{packets.ConnackNotAuthorized}
}

func (*rejectingConn) Close() error { return nil }

func TestSink_RejectionBeforeConnectionLoss(t *testing.T) {
	t.Parallel()
	for range 100 {
		s := New(&Config{Broker: MQTT, Addresses: []string{"127.0.0.1:1883"}, User: testUser})
		if err := s.buildFromConfig(); err != nil {
			t.Fatal(err)
		}
		open := func(context.Context) (brokerConn, error) { return &rejectingConn{newLifetime()}, nil }
		s.broker = newReconnector(open, testkit.Log(t))
		err := s.Deliver(t.Context(), newDelivery(1))
		if err == nil || !strings.Contains(err.Error(), "is not authorized") {
			t.Fatalf("got %v, want the rejection", err)
		}
		_ = s.Stop(t.Context())
	}
}

func TestSink_AcquireSlotFailsOnlyWhenFull(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		if err := New(&Config{}).acquireSlot(ended); err != nil {
			t.Fatalf("with %d free slots: got %v", maxPublishing, err)
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
