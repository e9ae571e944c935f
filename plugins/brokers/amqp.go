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

// heartbeat is how often the server shows life; a connection is dead after two that failed to come.
const (
	heartbeat = 5 * time.Second
	closeTime = time.Second
)

var routingKey = nameRule{
	maxBytes: 255,
	allowed:  printableBut("*#"),
	check: func(text string) error {
		return every(printableBut("*#"), "a routing key has no white space, '*' or '#'")(text)
	},
}

// amqpConnection is a channel that confirms. Watermill's own publisher does not look at what comes back as unroutable, which RabbitMQ
// acknowledges besides, and waits for each confirmation before it publishes the next on a channel.
type amqpConnection struct {
	cancelableLifetime
	conn     *amqp.Connection
	channel  *amqp.Channel
	exchange string

	mu            sync.Mutex
	waiting       map[uint64]published
	earlyConfirms map[uint64]bool // confirmations that came before Publish has noted their tags
	returned      map[string]string
	blocked       string
}

// published waits for the confirmation of a tag.
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
	secured, err := s.tlsConfig(name)
	if err != nil {
		return nil, err
	}
	password, err := s.readPassword()
	if err != nil {
		return nil, err
	}
	uri := amqp.URI{Scheme: "amqp", Host: name, Port: port, Username: s.config.User, Password: password, Vhost: s.config.VHost}
	if uri.Vhost == "" {
		uri.Vhost = "/"
	}
	if uri.Username == "" {
		uri.Username, uri.Password = "guest", "guest" // as the protocol has it
	}
	if secured != nil {
		uri.Scheme = "amqps"
	}
	shake := &handshakeDialer{ctx: ctx}
	defer shake.keepOpen()
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName("hubrelay")
	conn, err := amqp.DialConfig(uri.String(), amqp.Config{
		Vhost: uri.Vhost, Heartbeat: heartbeat, TLSClientConfig: secured, Properties: properties,
		Dial: shake.Dial,
	})
	if err != nil {
		return nil, err
	}
	c := &amqpConnection{
		cancelableLifetime: newMortal(), conn: conn, exchange: s.exchangeName(),
		waiting: map[uint64]published{}, earlyConfirms: map[uint64]bool{}, returned: map[string]string{},
	}
	if err := c.openChannel(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

func (s *Sink) exchangeName() string {
	if s.config.Exchange == nil {
		return "amq.topic" // which every broker has
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
	// Without a buffer, so that a return is seen before the confirmation that follows it.
	returns, confirms := c.channel.NotifyReturn(make(chan amqp.Return)), c.channel.NotifyPublish(make(chan amqp.Confirmation))
	ended, blocked := c.channel.NotifyClose(make(chan *amqp.Error, 1)), c.conn.NotifyBlocked(make(chan amqp.Blocking, 1))
	go c.handleEvents(returns, confirms, blocked, ended)
	context.AfterFunc(c.lifetime(), func() { _ = c.Close() })
	return nil
}

// handleEvents hears what the server says until the channel is closed. It never stops before: the library waits for each to be heard,
// with locks in its hands that publishing needs.
func (c *amqpConnection) handleEvents(returns <-chan amqp.Return, confirms <-chan amqp.Confirmation, blocked <-chan amqp.Blocking, ended <-chan *amqp.Error) {
	for returns != nil || confirms != nil {
		select {
		case r, ok := <-returns:
			if !ok {
				returns = nil
				continue
			}
			c.mu.Lock()
			c.returned[r.MessageId] = r.ReplyText
			c.mu.Unlock()
		case confirm, ok := <-confirms:
			if !ok {
				confirms = nil
				continue
			}
			c.handleConfirm(confirm.DeliveryTag, confirm.Ack)
		case b, ok := <-blocked:
			if !ok {
				blocked = nil
				continue
			}
			c.mu.Lock()
			if c.blocked = ""; b.Active {
				c.blocked = b.Reason + "."
			}
			c.mu.Unlock()
		case err := <-ended:
			c.failAll(err)
			ended = nil
		}
	}
	if ended != nil { // all three are closed by now
		c.failAll(<-ended)
	}
}

// failAll tells all that wait.
func (c *amqpConnection) failAll(err *amqp.Error) {
	if err == nil { // which is no nil error
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

var errRefused = errors.New("the queue refuses the message: it is full (overflow: reject-publish), or its node has failed")

// unroutable is the error of a message that no queue wanted.
type unroutable struct{ reason string }

func (e *unroutable) Error() string { return "no queue is bound for it (" + e.reason + ")" }

// confirmError is what a confirmation means. The caller holds the lock.
func (c *amqpConnection) confirmError(id string, ack bool) error {
	reason, back := c.returned[id]
	delete(c.returned, id)
	switch {
	case back:
		return &unroutable{reason}
	case !ack:
		return errRefused
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
		return fmt.Errorf("the broker blocks publishers, %s It is short of memory or disk", blocked)
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
	case <-m.Context().Done(): // the tag is forgotten when it is confirmed
	case <-c.lifetime().Done():
	}
	select {
	case err := <-done: // at the same time
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

func showAMQP(s *Sink, key string, m *message.Message) (relay.Explanation, error) {
	p, beside := newPublishing(m), map[string]string{}
	for name, value := range p.Headers {
		beside[name] = fmt.Sprint(value)
	}
	return relay.Explanation{Headers: append([]relay.Header{
		{Name: "exchange", Value: s.exchangeName()},
		{Name: "routing_key", Value: key},
		{Name: "delivery_mode", Value: strconv.Itoa(int(p.DeliveryMode))},
		{Name: "message_id", Value: p.MessageId},
		{Name: "type", Value: p.Type},
		{Name: "app_id", Value: p.AppId},
		{Name: "content_type", Value: p.ContentType},
	}, sortedHeaders(beside)...), Payload: p.Body}, nil
}

// Close may be called twice.
func (c *amqpConnection) Close() error {
	err := c.conn.CloseDeadline(time.Now().Add(closeTime))
	if errors.Is(err, amqp.ErrClosed) {
		return nil
	}
	return err
}

func judgeAMQP(s *Sink, where string, err error) error {
	exchange := strconv.Quote(s.exchangeName())
	var back *unroutable
	var said *amqp.Error
	switch {
	case errors.As(err, &back):
		if s.exchangeName() == "" {
			return fmt.Errorf("amqp: there is no queue %q (%s): declare it, or change routing_key", where, back.reason)
		}
		return fmt.Errorf("amqp: no queue of exchange %s takes the routing key %q (%s): bind one, or change exchange or routing_key",
			exchange, where, back.reason)
	case !errors.As(err, &said):
		return err
	}
	switch {
	case errors.Is(err, amqp.ErrCredentials):
		return fmt.Errorf("amqp: the broker refuses %s with this password: correct user or password", s.userName())
	case errors.Is(err, amqp.ErrVhost), said.Code == amqp.NotAllowed:
		return fmt.Errorf("amqp: there is no vhost %q for %s: create it, allow it, or change vhost", s.config.VHost, s.userName())
	case said.Code == amqp.NotFound:
		return fmt.Errorf("amqp: there is no exchange %s: declare it, or change exchange", exchange)
	case said.Code == amqp.AccessRefused:
		return fmt.Errorf("amqp: %s may not write to exchange %s: allow it, or change user", s.userName(), exchange)
	}
	return err
}
