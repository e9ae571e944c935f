package delivery

import (
	"context"
	"maps"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// erasures are the accounts that were erased since the start of this node or up to a day before. The queues no longer have
// their deliveries, but nodes may have read some of them. It may be used concurrently.
type erasures struct {
	store     *store.Erasures
	byAccount atomic.Pointer[map[string]time.Time]
}

// refresh is not called concurrently.
func (e *erasures) refresh(ctx context.Context) error {
	stored, err := e.store.List(ctx)
	if err != nil || len(stored) == 0 {
		return err
	}
	// What has expired in Redis may still concern deliveries that this node has read. Erasures are few.
	if known := e.byAccount.Load(); known != nil {
		all := maps.Clone(*known)
		maps.Copy(all, stored)
		stored = all
	}
	e.byAccount.Store(&stored)
	return nil
}

// isErased reports whether a notification was stored before its account was erased. Notices have no cursor and may be newer.
func (e *erasures) isErased(n *relay.Notification) bool {
	byAccount := e.byAccount.Load()
	if byAccount == nil {
		return false
	}
	erasedAt, found := (*byAccount)[n.Account]
	return found && n.Cursor != "" && store.IsStoredUntil(n.Cursor, erasedAt)
}
