package brokers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	heartbeatInterval = 5 * time.Second // a connection is lost after two missing heartbeats
	closeTimeout      = time.Second
)

var routingKey = nameRule{
	maxBytes: 255,
	allowed:  printableExcept("*#"),
	check: func(text string) error {
		return checkRunes(printableExcept("*#"), "a routing key must not contain white space, '*' or '#'")(text)
	},
}

// amqpConnection publishes all messages on one shared channel. If the broker closes it because a topic permission forbids the
// routing key of one message, each message without confirmation is published again alone. Later messages with that routing key
// do not use the shared channel.
type amqpConnection struct {
	cancelableLifetime
	conn     *amqp.Connection
	exchange string
	sizes    *amqpSizeLimit
	// alone holds the channel for messages that are published alone, or nil before it is opened. A publisher receives it, and
	// sends it back after the confirmation.
	alone    chan *amqpChannel
	rejected rejectedKeys

	sharedMu sync.Mutex
	shared   *amqpChannel

	mu      sync.Mutex
	blocked string // the reason why the server blocks publishers, or ""
}

func openAMQP(s *Sink) opener {
	sizes := &amqpSizeLimit{}
	return func(ctx context.Context) (brokerConn, error) {
		return s.eachHost(ctx, func(host string) (brokerConn, error) { return s.dialAMQP(ctx, host, sizes) })
	}
}

func (s *Sink) dialAMQP(ctx context.Context, host string, sizes *amqpSizeLimit) (brokerConn, error) {
	name, port, err := splitAddress(host, 0)
	if err != nil {
		return nil, err
	}
	tlsConfig, err := s.tlsConfig(name)
	if err != nil {
		return nil, err
	}
	password, err := s.readPassword()
	if err != nil {
		return nil, err
	}
	uri := amqp.URI{
		Scheme: "amqp", Host: name, Port: port,
		Username: s.config.User, Password: password, Vhost: s.vhost(),
	}
	if uri.Username == "" {
		uri.Username, uri.Password = "guest", "guest" // the default of AMQP
	}
	if tlsConfig != nil {
		uri.Scheme = "amqps"
	}
	dialer := &handshakeDialer{ctx: ctx}
	defer dialer.keepOpen()
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName("hubrelay")
	conn, err := amqp.DialConfig(uri.String(), amqp.Config{
		Vhost: uri.Vhost, Heartbeat: heartbeatInterval, TLSClientConfig: tlsConfig, Properties: properties,
		Dial: dialer.Dial,
	})
	if err != nil {
		return nil, err
	}
	c := &amqpConnection{
		cancelableLifetime: newLifetime(), conn: conn, exchange: s.exchangeName(), sizes: sizes,
		alone: make(chan *amqpChannel, 1), rejected: rejectedKeys{expires: map[string]time.Time{}},
	}
	c.alone <- nil
	if _, err := c.sharedChannel(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	go c.watchBlocked(conn.NotifyBlocked(make(chan amqp.Blocking, 1)))
	go watchClose(conn.NotifyClose(make(chan *amqp.Error, 1)), func(err error) { c.kill(c.explainSilence(err)) })
	context.AfterFunc(c.lifetime(), func() { _ = c.Close() })
	return c, nil
}

func (s *Sink) exchangeName() string {
	if s.config.Exchange == nil {
		return "amq.topic" // exists on all brokers
	}
	return *s.config.Exchange
}

// explainSilence replaces the error of a connection on which no heartbeat arrived in time.
func (c *amqpConnection) explainSilence(err error) error {
	var closed *amqp.Error
	if errors.As(err, &closed) && closed.Code == amqp.FrameError && strings.HasPrefix(closed.Reason, "read ") &&
		strings.HasSuffix(closed.Reason, os.ErrDeadlineExceeded.Error()) {
		return &noResponseError{c.conn.Config.Heartbeat * 3 / 2, err} // the time limit of the library for a read
	}
	return err
}

// watchBlocked stores whether the server blocks publishers. The library closes the channel with the connection.
func (c *amqpConnection) watchBlocked(events <-chan amqp.Blocking) {
	for b := range events {
		c.mu.Lock()
		if c.blocked = ""; b.Active {
			c.blocked = b.Reason + "."
		}
		c.mu.Unlock()
	}
}

var errQueueRejects = errors.New(
	"the queue rejects the message: it is full (overflow: reject-publish), or its node failed")

// unroutableError is the error of a message that matches no queue.
type unroutableError struct{ reason string }

func (e *unroutableError) Error() string { return "no queue is bound for it (" + e.reason + ")" }

// Publish waits for the confirmation of each message.
func (c *amqpConnection) Publish(key string, messages ...*message.Message) error {
	for _, m := range messages {
		if err := c.publish(key, m); err != nil {
			return err
		}
	}
	return nil
}

func (c *amqpConnection) publish(key string, m *message.Message) error {
	c.mu.Lock()
	blocked := c.blocked
	c.mu.Unlock()
	if blocked != "" {
		return fmt.Errorf("the broker blocks publishers, %s It lacks memory or disk space", blocked)
	}
	if err := c.sizes.checkSize(m, time.Now()); err != nil {
		return err
	}
	err, isAlone := error(nil), c.rejected.containsKey(key, time.Now())
	if !isAlone {
		err = c.publishShared(key, m)
	}
	if isAlone || isTopicRejected(err) {
		err = c.publishAlone(key, m)
	}
	if !c.sizes.learnLimit(err, time.Now()) {
		return err
	}
	return cmp.Or(c.sizes.checkSize(m, time.Now()), error(&resendError{err}))
}

// amqpSizeLimit is the maximum size of a message that RabbitMQ accepts (max_message_size), if it is known. RabbitMQ rejects a
// larger message by closing the channel with its size and the limit, so all other messages on the channel fail, too. A known
// limit keeps the events of one account from doing this to others more than once per sizeLimitTime.
type amqpSizeLimit struct {
	mu      sync.Mutex
	bytes   int // 0 if it is unknown
	expires time.Time
}

// sizeLimitTime is the time after which a larger message is sent again, because an operator may have raised the limit.
const sizeLimitTime = 10 * time.Minute

var amqpSizeReason = regexp.MustCompile(`message size \d+ is larger than configured max size (\d+)`)

// learnLimit reports whether err names the limit, and stores it.
func (l *amqpSizeLimit) learnLimit(err error, now time.Time) bool {
	var closed *amqp.Error
	if !errors.As(err, &closed) || closed.Code != amqp.PreconditionFailed {
		return false
	}
	found := amqpSizeReason.FindStringSubmatch(closed.Reason)
	if found == nil {
		return false
	}
	size, err := strconv.Atoi(found[1])
	if err != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes, l.expires = size, now.Add(sizeLimitTime)
	return true
}

// checkSize returns an error for a message that is larger than the known limit.
func (l *amqpSizeLimit) checkSize(m *message.Message, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bytes == 0 || len(m.Payload) <= l.bytes || now.After(l.expires) {
		return nil
	}
	return &amqpSizeError{l.bytes}
}

// amqpSizeError is the error of a message that is larger than the broker accepts.
type amqpSizeError struct{ limit int }

func (e *amqpSizeError) Error() string {
	return fmt.Sprintf("the message is larger than the broker's max_message_size of %d bytes", e.limit)
}

func newPublishing(m *message.Message) amqp.Publishing {
	headers := amqp.Table{}
	for name, value := range m.Metadata {
		headers[name] = value
	}
	return amqp.Publishing{
		Headers: headers, ContentType: contentType, DeliveryMode: amqp.Persistent, MessageId: m.UUID,
		Type: m.Metadata.Get(headerTopic), AppId: "hubrelay", Body: m.Payload,
	}
}

func explainAMQP(s *Sink, key string, m *message.Message) (relay.Preview, error) {
	p, metadata := newPublishing(m), map[string]string{}
	for name, value := range p.Headers {
		metadata[name] = fmt.Sprint(value)
	}
	return relay.Preview{Headers: append([]relay.Header{
		{Name: "exchange", Value: s.exchangeName()},
		{Name: "routing_key", Value: key},
		{Name: "delivery_mode", Value: strconv.Itoa(int(p.DeliveryMode))},
		{Name: "message_id", Value: p.MessageId},
		{Name: "type", Value: p.Type},
		{Name: "app_id", Value: p.AppId},
		{Name: "content_type", Value: p.ContentType},
	}, sortedHeaders(metadata)...), Payload: p.Body}, nil
}

// Close closes the connection within closeTimeout. It may be called twice.
func (c *amqpConnection) Close() error {
	err := c.conn.CloseDeadline(time.Now().Add(closeTimeout))
	if errors.Is(err, amqp.ErrClosed) {
		return nil
	}
	return err
}

func (s *Sink) vhost() string { return cmp.Or(s.config.VHost, "/") }

func classifyAMQP(s *Sink, routingKey string, err error) error {
	exchange := strconv.Quote(s.exchangeName())
	var unroutable *unroutableError
	var tooLarge *amqpSizeError
	var brokerErr *amqp.Error
	switch {
	case errors.As(err, &tooLarge):
		return relay.Permanent(fmt.Errorf("amqp: %w: raise it, or make digests shorter", err))
	case errors.As(err, &unroutable):
		if s.exchangeName() == "" {
			return fmt.Errorf("amqp: there is no queue %q (%s): declare it, or change routing_key",
				routingKey, unroutable.reason)
		}
		return fmt.Errorf("amqp: no queue of exchange %s is bound to the routing key %q (%s): "+
			"bind one, or change exchange or routing_key", exchange, routingKey, unroutable.reason)
	case !errors.As(err, &brokerErr):
		return err
	}
	switch {
	case errors.Is(err, amqp.ErrCredentials):
		return fmt.Errorf("amqp: the broker rejects %s with this password: correct user or password", s.userName())
	case errors.Is(err, amqp.ErrVhost), brokerErr.Code == amqp.NotAllowed:
		return fmt.Errorf("amqp: there is no vhost %q for %s: create it, allow it, or change vhost",
			s.vhost(), s.userName())
	case brokerErr.Code == amqp.NotFound:
		return fmt.Errorf("amqp: there is no exchange %s: declare it, or change exchange", exchange)
	case isTopicRejected(err):
		return fmt.Errorf("amqp: %s may write to exchange %s, but a topic permission forbids the routing key %q: "+
			"allow it (rabbitmqctl set_topic_permissions), or change routing_key or user", s.userName(), exchange, routingKey)
	case brokerErr.Code == amqp.AccessRefused:
		return fmt.Errorf("amqp: %s may not write to exchange %s: allow it, or change user", s.userName(), exchange)
	}
	return err
}
