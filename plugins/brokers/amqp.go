package brokers

import (
	"context"
	"errors"
	"fmt"
	"strconv"
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

// amqpConnection is a channel with publisher confirms. Watermill's publisher ignores returned messages, which RabbitMQ
// also confirms, and allows only one unconfirmed message per channel.
type amqpConnection struct {
	cancelableLifetime
	conn     *amqp.Connection
	channel  *amqp.Channel
	exchange string

	mu            sync.Mutex
	waiting       map[uint64]published
	earlyConfirms map[uint64]bool   // confirmations that arrived before publish registered the tag
	returned      map[string]string // by message ID, the reason
	blocked       string            // the reason why the server blocks publishers, or ""
}

// published is a message without confirmation.
type published struct {
	id   string
	done chan error
}

func openAMQP(s *Sink) opener {
	return func(ctx context.Context) (brokerConn, error) {
		return s.eachHost(func(host string) (brokerConn, error) { return s.dialAMQP(ctx, host) })
	}
}

func (s *Sink) dialAMQP(ctx context.Context, host string) (brokerConn, error) {
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
		Username: s.config.User, Password: password, Vhost: s.config.VHost,
	}
	if uri.Vhost == "" {
		uri.Vhost = "/"
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
		cancelableLifetime: newLifetime(), conn: conn, exchange: s.exchangeName(),
		waiting: map[uint64]published{}, earlyConfirms: map[uint64]bool{}, returned: map[string]string{},
	}
	if err := c.openChannel(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

func (s *Sink) exchangeName() string {
	if s.config.Exchange == nil {
		return "amq.topic" // exists on all brokers
	}
	return *s.config.Exchange
}

func (c *amqpConnection) openChannel() (err error) {
	if c.channel, err = c.conn.Channel(); err != nil {
		return err
	}
	if err := c.channel.Confirm(false); err != nil {
		return err
	}
	events := amqpEvents{
		// These two have no buffer, so a return is handled before the confirmation that follows it.
		returns:  c.channel.NotifyReturn(make(chan amqp.Return)),
		confirms: c.channel.NotifyPublish(make(chan amqp.Confirmation)),
		blocked:  c.conn.NotifyBlocked(make(chan amqp.Blocking, 1)),
		closed:   c.channel.NotifyClose(make(chan *amqp.Error, 1)),
	}
	go c.handleEvents(events)
	context.AfterFunc(c.lifetime(), func() { _ = c.Close() })
	return nil
}

// amqpEvents are the notifications of the library, which closes the channels when the AMQP channel is closed.
type amqpEvents struct {
	returns  <-chan amqp.Return
	confirms <-chan amqp.Confirmation
	blocked  <-chan amqp.Blocking
	closed   <-chan *amqp.Error
}

// handleEvents receives events until the AMQP channel is closed. It never stops earlier, because the library holds
// locks that publishing needs until an event is received.
func (c *amqpConnection) handleEvents(e amqpEvents) {
	for e.returns != nil || e.confirms != nil {
		select {
		case r, ok := <-e.returns:
			if !ok {
				e.returns = nil
				continue
			}
			c.mu.Lock()
			c.returned[r.MessageId] = r.ReplyText
			c.mu.Unlock()
		case confirm, ok := <-e.confirms:
			if !ok {
				e.confirms = nil
				continue
			}
			c.handleConfirm(confirm.DeliveryTag, confirm.Ack)
		case b, ok := <-e.blocked:
			if !ok {
				e.blocked = nil
				continue
			}
			c.mu.Lock()
			if c.blocked = ""; b.Active {
				c.blocked = b.Reason + "."
			}
			c.mu.Unlock()
		case err := <-e.closed:
			c.failAll(err)
			e.closed = nil
		}
	}
	if e.closed != nil { // the library closes it with the others
		c.failAll(<-e.closed)
	}
}

// failAll ends the lifetime of the connection, and with it all pending messages.
func (c *amqpConnection) failAll(err *amqp.Error) {
	if err == nil { // a nil *amqp.Error is not a nil error
		c.kill(nil)
		return
	}
	c.kill(err)
}

func (c *amqpConnection) handleConfirm(tag uint64, ack bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.waiting[tag]
	if !ok {
		c.earlyConfirms[tag] = ack
		return
	}
	delete(c.waiting, tag)
	p.done <- c.confirmError(p.id, ack)
}

var errQueueRejects = errors.New(
	"the queue rejects the message: it is full (overflow: reject-publish), or its node failed")

// unroutableError is the error of a message that matches no queue.
type unroutableError struct{ reason string }

func (e *unroutableError) Error() string { return "no queue is bound for it (" + e.reason + ")" }

// confirmError returns the result of a confirmed message. The caller holds the lock.
func (c *amqpConnection) confirmError(id string, ack bool) error {
	reason, unroutable := c.returned[id]
	delete(c.returned, id)
	switch {
	case unroutable:
		return &unroutableError{reason}
	case !ack:
		return errQueueRejects
	}
	return nil
}

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
	blocked, unconfirmed := c.blocked, len(c.waiting)
	c.mu.Unlock()
	if unconfirmed >= maxPublishing {
		return fmt.Errorf("the broker has not confirmed the last %d messages", unconfirmed)
	}
	if blocked != "" {
		return fmt.Errorf("the broker blocks publishers, %s It lacks memory or disk space", blocked)
	}
	confirmation, err := c.channel.PublishWithDeferredConfirm(c.exchange, key, true, false, newPublishing(m))
	if errors.Is(err, amqp.ErrClosed) {
		return c.lossError(m.Context())
	}
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	c.mu.Lock()
	tag := confirmation.DeliveryTag
	ack, early := c.earlyConfirms[tag]
	switch {
	case early:
		delete(c.earlyConfirms, tag)
		done <- c.confirmError(m.UUID, ack)
	default:
		c.waiting[tag] = published{m.UUID, done}
	}
	c.mu.Unlock()
	select {
	case err := <-done:
		return err
	case <-m.Context().Done(): // handleConfirm removes the tag later
	case <-c.lifetime().Done():
	}
	select {
	case err := <-done: // select chose at random
		return err
	default:
	}
	if c.lifetime().Err() != nil {
		return c.lossError(m.Context())
	}
	return m.Context().Err()
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

func classifyAMQP(s *Sink, routingKey string, err error) error {
	exchange := strconv.Quote(s.exchangeName())
	var unroutable *unroutableError
	var brokerErr *amqp.Error
	switch {
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
			s.config.VHost, s.userName())
	case brokerErr.Code == amqp.NotFound:
		return fmt.Errorf("amqp: there is no exchange %s: declare it, or change exchange", exchange)
	case brokerErr.Code == amqp.AccessRefused:
		return fmt.Errorf("amqp: %s may not write to exchange %s: allow it, or change user", s.userName(), exchange)
	}
	return err
}
