package brokers

import (
	"errors"
	"io"
	"testing"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho/session"
	"github.com/eclipse/paho.golang/paho/session/state"
)

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
