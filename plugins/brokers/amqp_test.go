package brokers

import (
	"context"
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestAMQPKnowsWhyItsChannelWasClosed(t *testing.T) {
	t.Parallel()
	for range 50 {
		c := &amqpConnection{cancelableLifetime: newMortal()}
		returns, confirms, ended := make(chan amqp.Return), make(chan amqp.Confirmation), make(chan *amqp.Error, 1)
		ended <- &amqp.Error{Code: amqp.NotFound, Reason: "no exchange"}
		close(ended)
		close(returns)
		close(confirms)
		c.handleEvents(returns, confirms, nil, ended)
		var said *amqp.Error
		if cause := context.Cause(c.lifetime()); !errors.As(cause, &said) || said.Code != amqp.NotFound {
			t.Fatalf("it ended for %v", cause)
		}
	}
}
