package store

import (
	"context"
	"crypto/fips140"
	"crypto/sha1" //nolint:gosec // it only spreads names, and Redis scripts have it
	_ "embed"
	"encoding/hex"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// Ordering selects the deliveries of a sink that keep the order of the log. Empty means [OrderingNone].
type Ordering string

// A notification of several containers, or of none, is ordered with its hub.
const (
	OrderingNone      Ordering = "none"
	OrderingHub       Ordering = "hub"
	OrderingContainer Ordering = "container"
)

// hubKeyPrefix is the prefix of the ordering key of a hub.
const hubKeyPrefix = "hub:"

// IsOrdered reports whether the deliveries keep any order.
func (o Ordering) IsOrdered() bool { return o == OrderingHub || o == OrderingContainer }

// Key returns the ordering key of a notification. Notifications with the same key are delivered one after the other.
// The key is empty if there is no order. The key of a container includes the account. Otherwise an account could delay the
// events of another by naming its container.
func (o Ordering) Key(n relay.Notification) string {
	switch o {
	case OrderingContainer:
		if e, err := n.Envelope(); err == nil && len(e.Context.Containers) == 1 {
			return "container:" + n.Account + "\x00" + e.Context.Containers[0]
		}
		return hubKeyPrefix + n.Hub
	case OrderingHub:
		return hubKeyPrefix + n.Hub
	}
	return ""
}

// StoredKey returns the key as Redis stores it, with a fixed length of 24 bytes.
func (o Ordering) StoredKey(n relay.Notification) string {
	key := o.Key(n)
	if key == "" {
		return ""
	}
	var sum [sha1.Size]byte
	fips140.WithoutEnforcement(func() { sum = sha1.Sum([]byte(key)) }) //nolint:gosec // see above
	return hex.EncodeToString(sum[:12])
}

// defaultKeyPrefix returns the prefix of the ordering key of a dead letter that has no key. It is empty without order.
func (o Ordering) defaultKeyPrefix() string {
	if o.IsOrdered() {
		return hubKeyPrefix
	}
	return ""
}

// blockedKeysPage is the number of ordering keys that one script lists.
const blockedKeysPage = 1000

var (
	//go:embed scripts/ordered_enqueue.lua
	holdSource string
	//go:embed scripts/blocked_keys.lua
	blockedKeysSource string

	holdScript        = redisconn.NewScript(retryQueueSource + holdSource)
	blockedKeysScript = redisconn.NewScript(retryQueueSource + blockedKeysSource)
)

// Orders stores the order of the scheduled deliveries of ordered sinks.
type Orders struct{ db }

// Hold schedules a fresh delivery after the scheduled ones with its ordering key, and returns the number of scheduled
// deliveries. Without one, it changes nothing and returns false.
func (o *Orders) Hold(
	ctx context.Context, sink string, d Scheduled, arrivedAt time.Time,
) (depth int64, held bool, err error) {
	depth, err = holdScript.Run(ctx, o.client, o.retryKeys(sink), d.ID, arrivedAt.UnixMilli(), d.Body, d.OrderingKey).Int64()
	if err == nil && depth >= 0 {
		err = o.confirmReplicas(ctx, RetryKey(o.keys, sink))
	}
	if err != nil {
		return 0, false, redisconn.WrapError("hold delivery", err)
	}
	return depth, depth >= 0, nil
}

// Keys returns the ordering keys of a sink's scheduled deliveries.
func (o *Orders) Keys(ctx context.Context, sink string) ([]string, error) {
	var keys []string
	for after := ""; ; {
		page, err := blockedKeysScript.Run(ctx, o.client, o.retryKeys(sink), after, blockedKeysPage).StringSlice()
		if err != nil {
			return nil, redisconn.WrapError("list ordering keys", err)
		}
		keys = append(keys, page...)
		if len(page) < blockedKeysPage {
			return keys, nil
		}
		after = page[len(page)-1]
	}
}
