// Package print is a plugin that comes with the daemon, as builtin:print: it writes a line into the log for each
// notification. It shows what a sink's filter lets pass, and that plugins work at all.
//
// Like every plugin it imports relay and plugins/sdk only.
package print

import (
	"context"
	"log/slog"

	"github.com/hubrelay/hubrelay/plugins/sdk"
	"github.com/hubrelay/hubrelay/relay"
)

// Name is what the plugin is called behind "builtin:".
const Name = "print"

// Config is what an operator writes for it.
type Config struct {
	// Data shows the notification itself too.
	Data bool `json:"data"`
}

// Serve runs the plugin until the daemon has no more.
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
