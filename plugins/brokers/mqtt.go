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
	"unicode"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/eclipse/paho.golang/paho/session/state"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	mqttKeepAlive = 10 // seconds
	// mqttPacketTimeout is longer than any attempt, because the context of the attempt limits the time.
	mqttPacketTimeout = time.Hour
	// mqttOverhead is the assumed size of a packet without its payload: the topic and the properties.
	mqttOverhead = 2 << 10
)

var mqttTopic = nameRule{
	maxBytes: 1024,
	allowed:  printableExcept("+#/"),
	check: func(text string) error {
		if strings.HasPrefix(text, "$") {
			return errors.New("topics that begin with $ are reserved by the broker")
		}
		if text == "" {
			return errors.New("a topic must not be empty")
		}
		return checkRunes(func(r rune) bool { return replaceForbidden(r) == r && r != '+' && r != '#' },
			"a topic must not contain control characters, noncharacters, '+' or '#'")(text)
	},
}

// mqttConnection is a connection of MQTT 5, in which responses have a reason code. Its session ends with it: a message
// that was not acknowledged is published again with another packet ID and the same hubrelay-id.
type mqttConnection struct {
	cancelableLifetime
	client        *paho.Client
	session       *mqttSession
	conn          net.Conn
	maxPacketSize uint32 // the broker closes the connection after a larger packet
}

// mqttSession ends with its connection and then fails all pending messages. The library does that only for a session
// that can outlive its connection, so mqttSession replaces the expiry in the response that the library sees.
type mqttSession struct {
	*state.State
	ended atomic.Bool
}

// ConAckReceived implements session.SessionManager.
func (s *mqttSession) ConAckReceived(to io.Writer, connect *packets.Connect, connack *packets.Connack) error {
	properties := packets.Properties{}
	if connack.Properties != nil {
		properties = *connack.Properties
	}
	properties.SessionExpiryInterval = paho.Uint32(math.MaxUint32)
	changed := *connack
	changed.Properties = &properties
	return s.State.ConAckReceived(to, connect, &changed)
}

// ConnectionLost implements session.SessionManager.
func (s *mqttSession) ConnectionLost(d *packets.Disconnect) error {
	s.ended.Store(true)
	return errors.Join(s.State.ConnectionLost(d), s.Close())
}

func openMQTT(s *Sink) opener {
	return func(ctx context.Context) (brokerConn, error) {
		return s.eachHost(ctx, func(host string) (brokerConn, error) { return s.dialMQTT(ctx, host) })
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
	tlsConfig, err := s.tlsConfig(host)
	if err != nil {
		return nil, err
	}
	dialer := &handshakeDialer{ctx: ctx}
	defer dialer.keepOpen()
	conn, err := dialer.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	if tlsConfig != nil {
		tlsConn := tls.Client(conn, tlsConfig)
		if err := tlsConn.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, err
		}
		conn = tlsConn
	}
	session := &mqttSession{State: state.NewInMemory()}
	c := &mqttConnection{cancelableLifetime: newLifetime(), session: session, conn: conn}
	c.client = paho.NewClient(paho.ClientConfig{
		Conn: packets.NewThreadSafeConn(conn), Session: c.session, PacketTimeout: mqttPacketTimeout,
		OnClientError: c.kill,
		OnServerDisconnect: func(d *paho.Disconnect) {
			// The reason is not about a message, so this is not an mqttRejection.
			c.kill(fmt.Errorf("the broker closed it with reason code 0x%02x", d.ReasonCode))
		},
	})
	connect := &paho.Connect{ClientID: s.config.ClientID, KeepAlive: mqttKeepAlive, CleanStart: true}
	if s.config.User != "" {
		connect.Username, connect.UsernameFlag = s.config.User, true
		connect.Password, connect.PasswordFlag = []byte(password), password != ""
	}
	connack, err := c.client.Connect(ctx, connect)
	if err != nil {
		_ = conn.Close()
		if connack != nil && connack.ReasonCode >= packets.ConnackUnspecifiedError {
			return nil, &mqttRejection{connack.ReasonCode}
		}
		return nil, fmt.Errorf("%w (the broker must support MQTT 5)", err)
	}
	if c.maxPacketSize = math.MaxUint32; connack.Properties != nil && connack.Properties.MaximumPacketSize != nil {
		c.maxPacketSize = *connack.Properties.MaximumPacketSize
	}
	return c, nil
}

// mqttRejection is a response whose reason code is an error.
type mqttRejection struct{ code byte }

func (e *mqttRejection) Error() string {
	return fmt.Sprintf("the broker rejects it (reason code 0x%02x)", e.code)
}

// Publish waits for the acknowledgement of each message (quality of service 1). No message is retained.
func (c *mqttConnection) Publish(topic string, messages ...*message.Message) error {
	for _, m := range messages {
		if size := len(m.Payload) + mqttOverhead; uint64(size) > uint64(c.maxPacketSize) {
			return &mqttRejection{packets.ConnackPacketTooLarge}
		}
		puback, err := c.client.Publish(m.Context(), newMQTTPublish(topic, m))
		if puback != nil && puback.ReasonCode >= packets.PubackUnspecifiedError {
			return &mqttRejection{puback.ReasonCode}
		}
		if err != nil && c.session.ended.Load() {
			// Mosquitto also closes the connection because of other messages. A repeat by the daemon would delay all messages
			// of an ordered key.
			return &resendError{c.lossError(m.Context())}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func newMQTTPublish(topic string, m *message.Message) *paho.Publish {
	properties := &paho.PublishProperties{ContentType: contentType, PayloadFormat: paho.Byte(1)}
	for _, h := range sortedHeaders(m.Metadata) {
		properties.User.Add(h.Name, strings.Map(replaceForbidden, h.Value))
	}
	return &paho.Publish{QoS: 1, Topic: topic, Properties: properties, Payload: m.Payload}
}

// replaceForbidden replaces the characters for which a broker may close the connection (MQTT 5, section 1.5.4). The payload
// still has them.
func replaceForbidden(r rune) rune {
	if unicode.IsControl(r) || unicode.Is(unicode.Noncharacter_Code_Point, r) {
		return unicode.ReplacementChar
	}
	return r
}

func explainMQTT(_ *Sink, topic string, m *message.Message) (relay.Preview, error) {
	p := newMQTTPublish(topic, m)
	headers := []relay.Header{
		{Name: "topic", Value: p.Topic},
		{Name: "qos", Value: strconv.Itoa(int(p.QoS))},
		{Name: "content_type", Value: p.Properties.ContentType},
	}
	for _, u := range p.Properties.User {
		headers = append(headers, relay.Header{Name: u.Key, Value: u.Value})
	}
	return relay.Preview{Headers: headers, Payload: p.Payload}, nil
}

// Close disconnects. It may be called twice.
func (c *mqttConnection) Close() error {
	c.kill(nil)
	_ = c.client.Disconnect(&paho.Disconnect{})
	_ = c.conn.Close()
	return nil
}

func classifyMQTT(s *Sink, topic string, err error) error {
	var rejection *mqttRejection
	if !errors.As(err, &rejection) {
		return err
	}
	switch rejection.code {
	case packets.ConnackBadUsernameOrPassword, packets.ConnackNotAuthorized:
		return fmt.Errorf("mqtt: %s is not authorized to connect, or to publish to %q: correct user, password or the "+
			"broker's rules", s.userName(), topic)
	case packets.ConnackInvalidClientID:
		return fmt.Errorf("mqtt: the broker rejects the client_id %q: choose another", s.config.ClientID)
	case packets.ConnackPacketTooLarge:
		return relay.Permanent(errors.New("mqtt: the message is larger than the broker allows (maximum packet size): " +
			"raise it, or make digests shorter"))
	case packets.ConnackTopicNameInvalid:
		return relay.Permanent(fmt.Errorf("mqtt: the broker rejects the topic %q: change topic", topic))
	case packets.ConnackPayloadFormatInvalid:
		return relay.Permanent(errors.New("mqtt: the broker rejects the text of the message"))
	case packets.ConnackQuotaExceeded:
		return errors.New("mqtt: the broker's quota is exceeded")
	}
	return err
}
