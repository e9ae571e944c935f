package ingest

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/inbox"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

type countedReads struct {
	*inbox.Store
	reads atomic.Int64
}

func (c *countedReads) Read(
	ctx context.Context, after string, count int, block time.Duration,
) ([]inbox.Entry, error) {
	c.reads.Add(1)
	return c.Store.Read(ctx, after, count, block)
}

// The in-process Redis behaves differently: an idle inbox must not be polled in a loop, neither before it exists
// nor when it is empty.
func TestInbox_InMemoryDoesNotPoll(t *testing.T) {
	t.Parallel()
	b := newTestStores(conntest.OpenMemory(t))
	store, c := &countedReads{Store: b.inbox}, &counts{}
	stop := runInbox(t, store, b.leases.Lease("inbox", time.Minute), c)
	testkit.WaitFor(t, "the inbox waits", func() bool { return store.reads.Load() > 0 })
	for i := range 3 {
		add(t, b, "data", inboxItem("h", i))
		add(t, b, "data", "bad")
	}
	testkit.WaitFor(t, "all are handled", func() bool {
		return inboxLen(b) == 0 && c.stored.Load() == 3 && c.quarantined.Load() == 3
	})
	before := store.reads.Load()
	<-time.After(inboxBlock / 2)
	if n := store.reads.Load() - before; n > 3 {
		t.Errorf("got %d reads of an empty inbox", n)
	}
	stop()
	if n := len(logOf(t, b)); n != 3 {
		t.Errorf("%d are stored, want 3", n)
	}
}
