package brokers

import (
	"context"
	"errors"
	"testing"

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
