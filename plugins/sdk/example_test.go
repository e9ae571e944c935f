package sdk_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/hubrelay/hubrelay/plugins/sdk"
	"github.com/hubrelay/hubrelay/relay"
)

// A whole plugin; a real one's main prints the error to standard error and exits with 1.
func ExampleServeSink() {
	var config struct {
		Label string `json:"label"`
	}
	handler := func(_ context.Context, n relay.Notification) error {
		event, err := n.Envelope()
		if err != nil {
			return relay.Permanent(err)
		}
		slog.Info("an event", "label", config.Label, "topic", n.Topic, "containers", event.Context.Containers)
		return nil
	}
	if err := sdk.ServeSink(handler, sdk.Config(&config)); err != nil {
		fmt.Println(err)
	}
	// Output: this program is a plugin of hubrelay, which starts it: name it as the command of a sink of type plugin, or try it with `hubrelay plugins check PROGRAM`
}

// A handler of deliveries knows the attempt, and what a digest counted.
func ExampleServeDeliveries() {
	handler := func(_ context.Context, d relay.Delivery) error {
		if d.Attempt < 3 {
			return relay.RetryAfter(fmt.Errorf("attempt %d is too early", d.Attempt), time.Minute)
		}
		slog.Info("delivered", "id", d.ID, "notifications", len(d.Notifications))
		return nil
	}
	if err := sdk.ServeDeliveries(handler, sdk.Concurrency(1)); err != nil {
		fmt.Println("not started by hubrelay")
	}
	// Output: not started by hubrelay
}
