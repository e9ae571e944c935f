package brokers

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
)

func TestAMQPConnection_CauseOfClosedChannel(t *testing.T) {
	t.Parallel()
	c := &amqpConnection{cancelableLifetime: newLifetime()}
	closed := make(chan *amqp.Error, 1)
	closed <- &amqp.Error{Code: amqp.NotFound, Reason: "no exchange"}
	close(closed)
	c.watchClose(closed)
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
