package brokers

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho/session"
	"github.com/eclipse/paho.golang/paho/session/state"
)

// refusing ends behind its answer, as Mosquitto does where a rule forbids a topic.
type refusing struct{ mortal }

func (r *refusing) Publish(string, ...*message.Message) error {
	r.die(io.EOF)
	return &mqttRefusal{packets.ConnackNotAuthorized}
}

func (*refusing) Close() error { return nil }

func TestRefusalCountsThoughTheConnectionEnds(t *testing.T) {
	t.Parallel()
	for range 100 {
		s := New(&Config{Broker: MQTT, Addresses: []string{"127.0.0.1:1883"}, User: testUser})
		if err := s.prepare(); err != nil {
			t.Fatal(err)
		}
		s.link = newLink(func(context.Context) (connection, error) { return &refusing{newMortal()}, nil }, slog.New(slog.DiscardHandler))
		err := s.Deliver(t.Context(), delivery(1))
		if err == nil || !strings.Contains(err.Error(), "is not authorized") {
			t.Fatalf("the operator reads: %v", err)
		}
		_ = s.Stop(t.Context())
	}
}

func TestMQTTSessionTellsWhoWaits(t *testing.T) {
	t.Parallel()
	s := &mqttSession{State: state.NewInMemory()}
	never := uint32(0)
	hello := &packets.Connect{Properties: &packets.Properties{}}
	if err := s.ConAckReceived(io.Discard, hello, &packets.Connack{Properties: &packets.Properties{SessionExpiryInterval: &never}}); err != nil {
		t.Fatal(err)
	}
	var answers [3]chan packets.ControlPacket
	for i := range answers {
		answers[i] = make(chan packets.ControlPacket, 1)
		if err := s.AddToSession(t.Context(), &packets.Publish{QoS: 1}, answers[i]); err != nil {
			t.Fatal(err)
		}
	}
	refused := packets.NewControlPacket(packets.PUBACK)
	refused.Content = &packets.Puback{PacketID: 2, ReasonCode: packets.PubackNotAuthorized}
	if err := s.PacketReceived(refused, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the library may say it twice
		if err := s.ConnectionLost(nil); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []byte{0, packets.PUBACK, 0} {
		select {
		case got := <-answers[i]:
			if got.Type != want {
				t.Errorf("message %d was answered by %+v", i+1, got)
			}
		default:
			t.Errorf("message %d still waits", i+1)
		}
	}
	if err := s.AddToSession(t.Context(), &packets.Publish{QoS: 1}, answers[0]); !errors.Is(err, session.ErrNoConnection) {
		t.Errorf("behind the end: %v", err)
	}
}
