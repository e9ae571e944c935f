package daemon

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
)

// ReadEvent reads one notification in the form of a producer and validates it like a publish request. hub is the
// default for a notification without a hub. It may be empty.
func ReadEvent(cfg *Config, r io.Reader, hub string) (relay.Notification, error) {
	data, err := io.ReadAll(io.LimitReader(r, ingest.MaxNotification+1))
	if err != nil {
		return relay.Notification{}, fmt.Errorf("read the event: %w", err)
	}
	catalog, err := relay.NewCatalog(cfg.Notifications.ExtraTopics)
	if err != nil {
		return relay.Notification{}, err
	}
	n, decodeErr := ingest.NewDecoder(catalog).Decode(data, ingest.Defaults{Hub: hub, AnyAccount: true})
	if decodeErr != nil {
		hint := ""
		if decodeErr.Code == relay.CodeMissingArgument && strings.HasPrefix(decodeErr.Source, "/context") && hub == "" {
			hint = "; add it to the event, or use --hub"
		}
		return relay.Notification{}, fmt.Errorf("the relay would reject the event: %w%s", decodeErr, hint)
	}
	return n, nil
}

// Explained describes how the relay would handle a notification at one sink.
type Explained = delivery.Explained

// Explain returns what the relay would do with n at a sink of the configuration. It opens the sink but sends nothing.
func Explain(
	ctx context.Context, cfg *Config, kinds []relay.SinkKind, version, sink string, n relay.Notification,
) (Explained, error) {
	return delivery.Explain(ctx, cfg, kinds, version, sink, n)
}
