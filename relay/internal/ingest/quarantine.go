package ingest

import (
	"context"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/inbox"
)

// Quarantine lets operators read, correct and remove invalid entries. It may be used concurrently.
type Quarantine struct {
	*inbox.Store
	Decoder *Decoder
	// CheckRoom returns an error while the storage is full.
	CheckRoom func() error
}

// Replay moves an entry to the inbox, with data as its content, or unchanged if data is empty. It returns the
// notification as the relay decodes it. Its ID in the log differs. An entry of a source requires data, because the rules
// of the source do not apply to the inbox. The error is a *[relay.Error], and nothing has changed, if the relay would reject the
// content again, or would discard it because an event with the idempotency key of the entry is stored.
func (q *Quarantine) Replay(ctx context.Context, id string, data []byte) (relay.Notification, error) {
	entry, err := q.GetQuarantined(ctx, id)
	if err != nil {
		return relay.Notification{}, err
	}
	if len(data) == 0 {
		if entry.Source != "" {
			return relay.Notification{}, relay.NewError(relay.CodeInvalidState, "the entry comes from the source "+
				entry.Source+", whose rules do not apply to the inbox: check it and send the content that you want to publish")
		}
		data = entry.Data
	}
	n, invalid := q.Decoder.Decode(data, Defaults{AnyAccount: true})
	if invalid != nil {
		at := ""
		if invalid.Source != "" {
			at = " at " + invalid.Source
		}
		return relay.Notification{}, relay.NewError(relay.CodeInvalidArgument,
			"the content is not a valid event"+at+": "+invalid.Detail).WithPointer("/data")
	}
	if err := q.CheckRoom(); err != nil {
		return relay.Notification{}, err
	}
	if entry.Key != "" {
		isUsed, err := q.IsKeyUsed(ctx, n.Hub, scopeInboxKey(&n, entry.Key))
		switch {
		case err != nil:
			return relay.Notification{}, err
		case isUsed:
			return relay.Notification{}, relay.NewError(relay.CodeInvalidState, "the relay would discard the event, because one with "+
				"the same idempotency key was published in this hub: drop the entry, or publish the content without the key")
		}
	}
	return n, q.ReplayQuarantined(ctx, entry, data)
}
