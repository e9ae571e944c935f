package brokers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/eclipse/paho.golang/paho/session/state"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	mqttKeepAlive = 10 // seconds
	// mqttPatience is longer than any attempt: the attempt's own time counts.
	mqttPatience = time.Hour
	// mqttAround is room for what surrounds a payload: the topic, and the properties with ids of usual lengths.
	mqttAround = 2 << 10
)

var mqttTopic = nameRule{
	maxBytes: 1024,
	allowed:  printableBut("+#/"),
	check: func(text string) error {
		if strings.HasPrefix(text, "$") {
			return errors.New("topics that begin with $ are the broker's own")
		}
		if text == "" {
			return errors.New("a topic is not empty")
		}
		return every(func(r rune) bool { return r >= ' ' && r != '+' && r != '#' }, "a topic has no control character, '+' or '#'")(text)
	},
}

// mqttConnection is one connection of MQTT 5, whose answers say why something was refused. Its session ends with it: what was not
// acknowledged is published anew, under another packet id but with the same hubrelay-id.
type mqttConnection struct {
	cancelableLifetime
	client  *paho.Client
	session *mqttSession
	conn    net.Conn
	most    uint32 // how large a packet may be; the broker would end the connection
}

// mqttSession ends with its connection, and tells whoever waits for an answer. The library's own does so only where it may outlive
// the connection, which is therefore what that is told, and not the broker.
type mqttSession struct {
	*state.State
	over atomic.Bool
}

func (s *mqttSession) ConAckReceived(to io.Writer, hello *packets.Connect, answer *packets.Connack) error {
	outlives := packets.Properties{}
	if answer.Properties != nil {
		outlives = *answer.Properties
	}
	outlives.SessionExpiryInterval = paho.Uint32(math.MaxUint32)
	changed := *answer
	changed.Properties = &outlives
	return s.State.ConAckReceived(to, hello, &changed)
}

func (s *mqttSession) ConnectionLost(d *packets.Disconnect) error {
	s.over.Store(true)
	return errors.Join(s.State.ConnectionLost(d), s.Close())
}

func openMQTT(s *Sink) opener {
	return func(ctx context.Context) (brokerConn, error) {
		return s.eachHost(func(host string) (brokerConn, error) { return s.dialMQTT(ctx, host) })
	}
}

func (s *Sink) dialMQTT(ctx context.Context, address string) (brokerConn, error) {
	password, err := s.readPassword()
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	secured, err := s.tlsConfig(host)
	if err != nil {
		return nil, err
	}
	shake := &handshakeDialer{ctx: ctx}
	defer shake.keepOpen()
	conn, err := shake.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	if secured != nil {
		over := tls.Client(conn, secured)
		if err := over.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, err
		}
		conn = over
	}
	c := &mqttConnection{cancelableLifetime: newMortal(), session: &mqttSession{State: state.NewInMemory()}, conn: conn}
	c.client = paho.NewClient(paho.ClientConfig{
		Conn: packets.NewThreadSafeConn(conn), Session: c.session, PacketTimeout: mqttPatience,
		OnClientError: c.kill,
		OnServerDisconnect: func(d *paho.Disconnect) {
			// Not a refusal: it says nothing of the messages under way.
			c.kill(fmt.Errorf("the broker ended it with reason code 0x%02x", d.ReasonCode))
		},
	})
	hello := &paho.Connect{ClientID: s.config.ClientID, KeepAlive: mqttKeepAlive, CleanStart: true}
	if s.config.User != "" {
		hello.Username, hello.UsernameFlag = s.config.User, true
		hello.Password, hello.PasswordFlag = []byte(password), password != ""
	}
	answer, err := c.client.Connect(ctx, hello)
	if err != nil {
		_ = conn.Close()
		if answer != nil && answer.ReasonCode >= packets.ConnackUnspecifiedError {
			return nil, &mqttRefusal{answer.ReasonCode}
		}
		return nil, fmt.Errorf("%w (the broker must speak MQTT 5)", err)
	}
	if c.most = math.MaxUint32; answer.Properties != nil && answer.Properties.MaximumPacketSize != nil {
		c.most = *answer.Properties.MaximumPacketSize
	}
	return c, nil
}

// mqttRefusal is the reason code of an answer.
type mqttRefusal struct{ code byte }

func (e *mqttRefusal) Error() string {
	return fmt.Sprintf("the broker refuses it (reason code 0x%02x)", e.code)
}

// Publish waits for the acknowledgement of each message (quality of service 1). No message is retained.
func (c *mqttConnection) Publish(topic string, messages ...*message.Message) error {
	for _, m := range messages {
		if size := len(m.Payload) + mqttAround; uint64(size) > uint64(c.most) {
			return &mqttRefusal{packets.ConnackPacketTooLarge}
		}
		answer, err := c.client.Publish(m.Context(), mqttPublish(topic, m))
		if answer != nil && answer.ReasonCode >= packets.PubackUnspecifiedError {
			return &mqttRefusal{answer.ReasonCode}
		}
		if err != nil && c.session.over.Load() {
			return c.lossError(m.Context())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func mqttPublish(topic string, m *message.Message) *paho.Publish {
	properties := &paho.PublishProperties{ContentType: contentType, PayloadFormat: paho.Byte(1)}
	for _, h := range sortedHeaders(m.Metadata) {
		properties.User.Add(h.Name, h.Value)
	}
	return &paho.Publish{QoS: 1, Topic: topic, Properties: properties, Payload: m.Payload}
}

func showMQTT(_ *Sink, topic string, m *message.Message) (relay.Explanation, error) {
	p := mqttPublish(topic, m)
	headers := []relay.Header{
		{Name: "topic", Value: p.Topic}, {Name: "qos", Value: strconv.Itoa(int(p.QoS))}, {Name: "content_type", Value: p.Properties.ContentType},
	}
	for _, u := range p.Properties.User {
		headers = append(headers, relay.Header{Name: u.Key, Value: u.Value})
	}
	return relay.Explanation{Headers: headers, Payload: p.Payload}, nil
}

// Close may be called twice.
func (c *mqttConnection) Close() error {
	c.kill(nil)
	_ = c.client.Disconnect(&paho.Disconnect{})
	_ = c.conn.Close()
	return nil
}

func judgeMQTT(s *Sink, where string, err error) error {
	var refusal *mqttRefusal
	if !errors.As(err, &refusal) {
		return err
	}
	switch refusal.code {
	case packets.ConnackBadUsernameOrPassword, packets.ConnackNotAuthorized:
		return fmt.Errorf("mqtt: %s is not authorized to connect, or to publish to %q: correct user, password or the broker's rules", s.userName(), where)
	case packets.ConnackInvalidClientID:
		return fmt.Errorf("mqtt: the broker refuses the client_id %q: choose another", s.config.ClientID)
	case packets.ConnackPacketTooLarge:
		return relay.Permanent(errors.New("mqtt: the message is larger than the broker allows (maximum packet size): raise that, or have digests list less"))
	case packets.ConnackTopicNameInvalid:
		return relay.Permanent(fmt.Errorf("mqtt: the broker does not take the topic %q: change topic", where))
	case packets.ConnackQuotaExceeded:
		return errors.New("mqtt: the broker's quota is used up")
	}
	return err
}
