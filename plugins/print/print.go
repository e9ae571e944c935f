// Package print is the plugin builtin:print. It logs one line per notification. Use it to see what the filter of a sink
// selects, and as an example of a plugin.
//
// Like every plugin it imports only relay and plugins/sdk.
package print

import (
	"context"
	"log/slog"

	"github.com/hubrelay/hubrelay/plugins/sdk"
	"github.com/hubrelay/hubrelay/relay"
)

// Name is the name of the plugin after "builtin:".
const Name = "print"

// Config is the configuration of the plugin.
type Config struct {
	// Data also prints the notification itself.
	Data bool `json:"data"`
}

// Serve runs the plugin until the daemon closes the connection.
func Serve() error {
	var c Config
	return sdk.ServeSink(func(ctx context.Context, n relay.Notification) error {
		attrs := []slog.Attr{slog.String("id", n.ID), slog.String("topic", n.Topic), slog.String("hub", n.Hub)}
		if c.Data {
			attrs = append(attrs, slog.String("data", string(n.Data)))
		}
		slog.Default().LogAttrs(ctx, slog.LevelInfo, "notification", attrs...)
		return nil
	}, sdk.Config(&c))
}
