package brokers

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho/session"
	"github.com/eclipse/paho.golang/paho/session/state"

	"github.com/hubrelay/hubrelay/relay"
)

func TestMQTTSession_FailsPendingMessages(t *testing.T) {
	t.Parallel()
	s := &mqttSession{State: state.NewInMemory()}
	never := uint32(0)
	connect := &packets.Connect{Properties: &packets.Properties{}}
	connack := &packets.Connack{Properties: &packets.Properties{SessionExpiryInterval: &never}}
	if err := s.ConAckReceived(io.Discard, connect, connack); err != nil {
		t.Fatal(err)
	}
	var responses [3]chan packets.ControlPacket
	for i := range responses {
		responses[i] = make(chan packets.ControlPacket, 1)
		if err := s.AddToSession(t.Context(), &packets.Publish{QoS: 1}, responses[i]); err != nil {
			t.Fatal(err)
		}
	}
	puback := packets.NewControlPacket(packets.PUBACK)
	puback.Content = &packets.Puback{PacketID: 2, ReasonCode: packets.PubackNotAuthorized}
	if err := s.PacketReceived(puback, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the library may call it twice
		if err := s.ConnectionLost(nil); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []byte{0, packets.PUBACK, 0} {
		select {
		case got := <-responses[i]:
			if got.Type != want {
				t.Errorf("message %d: got %+v, want type %d", i+1, got, want)
			}
		default:
			t.Errorf("message %d is still pending", i+1)
		}
	}
	err := s.AddToSession(t.Context(), &packets.Publish{QoS: 1}, responses[0])
	if !errors.Is(err, session.ErrNoConnection) {
		t.Errorf("after the end: got %v", err)
	}
}

// startLossyMQTT starts a broker that closes its first connections when it receives a message, and acknowledges the messages
// of the next ones. It returns the address and the number of messages so far.
func startLossyMQTT(t *testing.T, losses int64) (string, *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var messages atomic.Int64
	var connections sync.WaitGroup
	connections.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			connections.Go(func() {
				defer func() { _ = conn.Close() }()
				for {
					p, err := packets.ReadPacket(conn)
					if err != nil {
						return
					}
					var response packets.Packet
					switch content := p.Content.(type) {
					case *packets.Connect:
						response = &packets.Connack{Properties: &packets.Properties{}}
					case *packets.Publish:
						if messages.Add(1) <= losses {
							return
						}
						response = &packets.Puback{PacketID: content.PacketID, Properties: &packets.Properties{}}
					case *packets.Pingreq:
						response = &packets.Pingresp{}
					default:
						return
					}
					if _, err := response.WriteTo(conn); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		connections.Wait()
	})
	return l.Addr().String(), &messages
}

func TestSink_MQTTResendsAfterConnectionLoss(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		losses, wantMessages int64
		wantError            string
	}{
		{0, 1, ""}, {1, 2, ""}, {maxSends, maxSends, "the connection was lost"},
	} {
		address, messages := startLossyMQTT(t, test.losses)
		s := startSink(t, Config{Broker: MQTT, Addresses: []string{address}})
		err := rig{}.deliver(t, s, newDelivery(1))
		if outcome, _ := relay.Classify(err); (err == nil) != (test.wantError == "") ||
			err != nil && (outcome != relay.OutcomeRetry || !strings.Contains(err.Error(), test.wantError)) {
			t.Errorf("%d losses: got %v, want %q", test.losses, err, test.wantError)
		}
		if got := messages.Load(); got != test.wantMessages {
			t.Errorf("%d losses: got %d messages in one attempt, want %d", test.losses, got, test.wantMessages)
		}
	}
}

// A broker may close the connection for some characters, which then end all attempts in progress.
func TestMQTTPublish_ReplacesForbiddenCharacters(t *testing.T) {
	t.Parallel()
	m := message.NewMessage("1", nil)
	m.Metadata = message.Metadata{headerHub: "a\x00\x1f\x7f\u0085\ufdd0\ufdef\ufffe\U0001ffff\U0010fffez \u00e4\U0001f600"}
	got := newMQTTPublish("topic", m).Properties.User
	want := "a" + strings.Repeat("\ufffd", 9) + "z \u00e4\U0001f600"
	if len(got) != 1 || got[0].Value != want {
		t.Errorf("got %+q, want %+q", got, want)
	}
	for _, topic := range []string{"a\x7f", "a\u0085", "a\uffff", "a+", "#"} {
		if mqttTopic.check(topic) == nil {
			t.Errorf("topic %q is accepted", topic)
		}
	}
}
