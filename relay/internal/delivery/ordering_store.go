package delivery

import (
	"context"
	"crypto/sha1" //nolint:gosec // it spreads names, and Redis has it
	_ "embed"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
)

// Ordering says which deliveries of a sink keep the order of the log among each other; empty is [OrderingNone].
type Ordering string

// A notification of several containers or of none is ordered with those of its hub.
const (
	OrderingNone      Ordering = "none"
	OrderingHub       Ordering = "hub"
	OrderingContainer Ordering = "container"
)

// hubKeys begins the ordering key of what is ordered by its hub.
const hubKeys = "hub:"

// Key returns what a notification is ordered by: those of the same key are delivered one after the other. It is empty
// where nothing is ordered.
func (o Ordering) Key(n relay.Notification) string {
	switch o {
	case OrderingContainer:
		if e, err := n.Envelope(); err == nil && len(e.Context.Containers) == 1 {
			return "container:" + e.Context.Containers[0]
		}
		return hubKeys + n.Hub
	case OrderingHub:
		return hubKeys + n.Hub
	}
	return ""
}

func (o Ordering) isOrdered() bool { return o == OrderingHub || o == OrderingContainer }

// queueKey is the key as the lines in Redis have it, of a fixed width.
func (o Ordering) queueKey(n relay.Notification) string {
	key := o.Key(n)
	if key == "" {
		return ""
	}
	sum := sha1.Sum([]byte(key)) //nolint:gosec // see above
	return hex.EncodeToString(sum[:12])
}

// hubKeyPrefix begins the keys of hubs, and is empty where nothing is ordered.
func (o Ordering) hubKeyPrefix() string {
	if o.isOrdered() {
		return hubKeys
	}
	return ""
}

// ordering is what the sink's pipeline on this node was told.
func (s *Store) ordering(sink string) Ordering {
	o, _ := s.orders.Load(sink)
	order, _ := o.(Ordering)
	return order
}

// blockedKeysPage is how many ordering keys are listed in one go.
const blockedKeysPage = 1000

var (
	//go:embed scripts/ordered_enqueue.lua
	holdSource string
	//go:embed scripts/blocked_keys.lua
	linesSource string

	holdScript  = redis.NewScript(delaySource + holdSource)
	linesScript = redis.NewScript(delaySource + linesSource)
)

// enqueueOrdered parks a fresh delivery behind those of its key. It reports false where none of them is parked, and then does
// nothing.
func (s *Store) enqueueOrdered(ctx context.Context, sink, id, body string, since time.Time, key string) (parked int64, ok bool, err error) {
	n, err := holdScript.Run(ctx, s.client, s.retryQueueKeys(sink), id, since.UnixMilli(), body, key).Int64()
	if err != nil {
		return 0, false, fmt.Errorf("hold a delivery back: %w", err)
	}
	return n, n >= 0, nil
}

// blockedKeys returns the keys that have deliveries parked.
func (s *Store) blockedKeys(ctx context.Context, sink string) ([]string, error) {
	var keys []string
	for after := ""; ; {
		step, err := linesScript.Run(ctx, s.client, s.retryQueueKeys(sink), after, blockedKeysPage).StringSlice()
		if err != nil {
			return nil, fmt.Errorf("list the ordering keys of parked deliveries: %w", err)
		}
		keys = append(keys, step...)
		if len(step) < blockedKeysPage {
			return keys, nil
		}
		after = step[len(step)-1]
	}
}
