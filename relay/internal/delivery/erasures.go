package delivery

import (
	"context"
	"maps"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// erasures are the accounts that were erased since the start of this node or up to a day before. Their deliveries are no longer
// in the queues, but this node may have read some of them before. It may be used concurrently.
type erasures struct {
	store     *store.Erasures
	byAccount atomic.Pointer[map[string]time.Time]
}

// loadErasures is not called concurrently.
func (e *erasures) loadErasures(ctx context.Context) error {
	stored, err := e.store.List(ctx)
	if err != nil || len(stored) == 0 {
		return err
	}
	// An erasure that has expired in Redis may still concern deliveries that this node has read. There are few erasures.
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
