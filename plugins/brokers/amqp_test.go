package brokers

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

func TestWatchClose_PassesCause(t *testing.T) {
	t.Parallel()
	c := newLifetime()
	closed := make(chan *amqp.Error, 1)
	closed <- &amqp.Error{Code: amqp.NotFound, Reason: "no exchange"}
	close(closed)
	watchClose(closed, c.kill)
	var brokerErr *amqp.Error
	if cause := context.Cause(c.lifetime()); !errors.As(cause, &brokerErr) || brokerErr.Code != amqp.NotFound {
		t.Fatalf("got cause %v, want code %d", cause, amqp.NotFound)
	}
}

func TestAMQPSizeLimit(t *testing.T) {
	t.Parallel()
	const reason = "PRECONDITION_FAILED - message size 20 is larger than configured max size 10"
	now := time.Now()
	large, small := message.NewMessage("1", make([]byte, 11)), message.NewMessage("2", make([]byte, 10))
	var limit amqpSizeLimit
	for _, err := range []error{
		errors.New(reason), &amqp.Error{Code: amqp.NotFound, Reason: reason}, &amqp.Error{Code: amqp.PreconditionFailed},
	} {
		if limit.learnLimit(err, now) || limit.checkSize(large, now) != nil {
			t.Errorf("%v set a limit", err)
		}
	}
	if !limit.learnLimit(&connLostError{&amqp.Error{Code: amqp.PreconditionFailed, Reason: reason}}, now) {
		t.Error("the limit was not recognized")
	}
	var tooLarge *amqpSizeError
	if err := limit.checkSize(large, now); !errors.As(err, &tooLarge) || tooLarge.limit != 10 {
		t.Errorf("got %v, want a limit of 10", err)
	}
	if err := limit.checkSize(small, now); err != nil {
		t.Error(err)
	}
	if err := limit.checkSize(large, now.Add(sizeLimitTime+1)); err != nil {
		t.Errorf("after the limit has expired: %v", err)
	}
}

// A return does not identify its copy of a message, so it counts for all copies without a confirmation.
func TestAMQPChannel_ReturnedCopies(t *testing.T) {
	t.Parallel()
	c := &amqpChannel{returns: make(chan amqp.Return, 4), unconfirmed: map[string]*unconfirmedCopies{}}
	for _, id := range []string{"same", "same", "same", "other"} {
		c.addCopy(id)
	}
	for range 2 {
		c.returns <- amqp.Return{MessageId: "same", ReplyText: "NO_ROUTE"}
	}
	for range 3 {
		if reason, returned := c.removeCopy("same"); reason != "NO_ROUTE" || !returned {
			t.Errorf("got %q, %v for a copy of the returned message", reason, returned)
		}
	}
	if reason, returned := c.removeCopy("other"); returned {
		t.Errorf("got %q for another message", reason)
	}
	c.addCopy("same")
	if reason, returned := c.removeCopy("same"); returned {
		t.Errorf("got %q for a copy after the others", reason)
	}
	if len(c.unconfirmed) > 0 {
		t.Errorf("got %v without messages", c.unconfirmed)
	}
}

// testUnroutableCopies publishes copies of an unroutable message while the broker does not respond. No attempt succeeds.
func (r rig) testUnroutableCopies(t *testing.T) {
	other := r.config
	direct := ""
	other.Exchange, other.RoutingKey = &direct, "no-such-queue"
	s := startSink(t, other)
	d := newDelivery(1)
	expectUnroutable := func() {
		if err := r.deliver(t, s, d); err == nil || !strings.Contains(err.Error(), "no queue") {
			t.Errorf("got %v, want an error about the missing queue", err)
		}
	}
	expectUnroutable() // also connects
	const copies = 100
	r.freeze(true)
	var all sync.WaitGroup
	for range copies {
		all.Go(expectUnroutable)
	}
	testkit.WaitFor(t, "all copies to be published", func() bool { return len(s.slots) == copies })
	r.freeze(false)
	all.Wait()
}
