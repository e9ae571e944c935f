package brokers

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
)

// amqpChannel is a channel with publisher confirms. Watermill's publisher ignores returned messages, which RabbitMQ also
// confirms, and allows only one unconfirmed message per channel. Its lifetime ends when the broker closes it.
type amqpChannel struct {
	cancelableLifetime
	*amqp.Channel
	// returns receives a returned message before its confirmation. Its capacity is the maximum number of messages
	// without confirmation, so the library never waits to send to it.
	returns chan amqp.Return

	mu          sync.Mutex
	unconfirmed map[string]*unconfirmedCopies // by message ID
}

// openChannel opens a channel for a maximum number of messages without confirmation.
func (c *amqpConnection) openChannel(maxUnconfirmed int) (*amqpChannel, error) {
	channel, err := c.conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := channel.Confirm(false); err != nil {
		return nil, errors.Join(err, channel.Close())
	}
	ch := &amqpChannel{
		cancelableLifetime: newLifetime(), Channel: channel,
		returns: make(chan amqp.Return, maxUnconfirmed), unconfirmed: map[string]*unconfirmedCopies{},
	}
	channel.NotifyReturn(ch.returns)
	go watchClose(channel.NotifyClose(make(chan *amqp.Error, 1)), func(err error) {
		err = c.explainSilence(err)
		if err != nil && !isTopicRejected(err) {
			c.kill(err) // before the end of the channel, so no publisher replaces the channel
		}
		ch.kill(err)
	})
	return ch, nil
}

// sharedChannel returns the channel of all messages. It replaces the channel if the broker has closed it because a topic
// permission forbids the routing key of one message.
func (c *amqpConnection) sharedChannel() (*amqpChannel, error) {
	c.sharedMu.Lock()
	defer c.sharedMu.Unlock()
	if c.shared != nil && (c.shared.lifetime().Err() == nil || c.lifetime().Err() != nil) {
		return c.shared, nil
	}
	ch, err := c.openChannel(maxPublishing)
	if err != nil {
		return nil, err
	}
	c.shared = ch
	return ch, nil
}

func (c *amqpConnection) publishShared(key string, m *message.Message) error {
	ch, err := c.sharedChannel()
	if err != nil {
		return c.explainOpenError(m.Context(), err)
	}
	return ch.publish(c.exchange, key, m)
}

// explainOpenError replaces the error of openChannel if the connection was lost. The library returns the error of the socket.
func (c *amqpConnection) explainOpenError(ctx context.Context, err error) error {
	if c.conn.IsClosed() {
		return c.lossError(ctx)
	}
	return err
}

// publishAlone publishes one message at a time on a channel for such messages. An error that closes the channel is then about
// this message.
func (c *amqpConnection) publishAlone(key string, m *message.Message) error {
	var ch *amqpChannel
	select {
	case ch = <-c.alone:
	case <-m.Context().Done():
		return m.Context().Err()
	}
	defer func() { c.alone <- ch }()
	if ch == nil || ch.IsClosed() {
		var err error
		if ch, err = c.openChannel(1); err != nil {
			return c.explainOpenError(m.Context(), err)
		}
	}
	err := ch.publish(c.exchange, key, m)
	switch {
	case err == nil:
		c.rejected.remove(key)
	case isTopicRejected(err):
		c.rejected.add(key, time.Now())
	}
	return err
}

// publish waits for the confirmation. It ignores the context of the message, and Sink.publish limits the number of messages
// without confirmation.
func (ch *amqpChannel) publish(exchange, key string, m *message.Message) error {
	ch.addCopy(m.UUID)
	confirmation, err := ch.PublishWithDeferredConfirm(exchange, key, true, false, newPublishing(m))
	acked := err == nil && confirmation.Wait()
	reason, unroutable := ch.removeCopy(m.UUID)
	switch {
	case errors.Is(err, amqp.ErrClosed):
		return ch.lossError(m.Context())
	case err != nil:
		return err
	case unroutable:
		return &unroutableError{reason}
	case acked:
		return nil
	case ch.IsClosed():
		return ch.lossError(m.Context())
	}
	return errQueueRejects
}

// unconfirmedCopies are the copies of one message that are not confirmed. An attempt that has ended in a timeout leaves its
// copy unconfirmed, so later attempts add copies. A return does not identify the copy.
type unconfirmedCopies struct {
	count    int
	returned bool
	reason   string // of the last return
}

// addCopy registers a copy of a message before it is published.
func (ch *amqpChannel) addCopy(id string) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	copies := ch.unconfirmed[id]
	if copies == nil {
		copies = &unconfirmedCopies{}
		ch.unconfirmed[id] = copies
	}
	copies.count++
}

// removeCopy removes a copy that was confirmed, or never will be. It reports whether the broker has returned any of the
// copies that were unconfirmed together, and the reason. A routed copy may then be sent again, but no returned copy counts
// as delivered.
func (ch *amqpChannel) removeCopy(id string) (reason string, returned bool) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	for len(ch.returns) > 0 {
		r := <-ch.returns
		if copies := ch.unconfirmed[r.MessageId]; copies != nil {
			copies.returned, copies.reason = true, r.ReplyText
		}
	}
	copies := ch.unconfirmed[id]
	if copies.count--; copies.count == 0 {
		delete(ch.unconfirmed, id)
	}
	return copies.reason, copies.returned
}

// watchClose passes the reason for which the library closes a channel or a connection to kill. The library then fails all
// messages without confirmation.
func watchClose(closed <-chan *amqp.Error, kill func(error)) {
	err := <-closed
	if err == nil { // a nil *amqp.Error is not a nil error
		kill(nil)
		return
	}
	kill(err)
}

// isTopicRejected reports whether the broker closed a channel because a topic permission forbids a routing key.
func isTopicRejected(err error) bool {
	var closed *amqp.Error
	return errors.As(err, &closed) && closed.Code == amqp.AccessRefused && strings.Contains(closed.Reason, "access to topic ")
}

// rejectedKeys are the routing keys that a topic permission forbids. Their messages are retried, because an operator may allow
// the routing key. On the shared channel, each retry would fail all other messages.
type rejectedKeys struct {
	mu      sync.Mutex
	expires map[string]time.Time // by routing key
}

const (
	maxRejectedKeys = 1024
	rejectedKeyTime = 10 * time.Minute
)

func (r *rejectedKeys) containsKey(key string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	expires, found := r.expires[key]
	return found && now.Before(expires)
}

// add adds a routing key. If there are too many, it replaces any other one, which then closes the shared channel again.
func (r *rejectedKeys) add(key string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, found := r.expires[key]; !found && len(r.expires) >= maxRejectedKeys {
		maps.DeleteFunc(r.expires, func(_ string, expires time.Time) bool { return !now.Before(expires) })
		for other := range r.expires {
			if len(r.expires) < maxRejectedKeys {
				break
			}
			delete(r.expires, other)
		}
	}
	r.expires[key] = now.Add(rejectedKeyTime)
}

func (r *rejectedKeys) remove(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.expires, key)
}
