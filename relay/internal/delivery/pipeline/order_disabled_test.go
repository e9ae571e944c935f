package pipeline

import (
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// A retry that waits for its ordering key starts no attempt if the sink is disabled before it gets the key.
func TestOrder_ClaimChecksStateAfterWaitForKey(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sink := &fakeSink{answer: answers(nil)}
	p := e.pipeline(sink, ordered(store.OrderingHub))
	p.state.set(store.StateActive, "")
	p.orders.becomeLeader(t.Context())
	d := delivery("d1")
	body, err := store.NewRecord(d, time.Now()).Encode()
	if err != nil {
		t.Fatal(err)
	}
	key := p.orders.opts.Ordering.StoredKey(d.Notifications[0])
	if _, _, ok := p.orders.lockKey(key); !ok {
		t.Fatal("the key is locked already")
	}
	r := p.admission.Reserve(1)
	r.Close(r.Len(), false)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Retry(t.Context(), store.Claim{Sink: "s", ID: "d1", Body: body})
	}()
	testkit.WaitFor(t, "the retry waits for its key", func() bool {
		p.orders.mu.Lock()
		defer p.orders.mu.Unlock()
		_, isBlocked := p.orders.blocked[key]
		return isBlocked
	})
	p.state.set(store.StateDisabled, "gone")
	p.orders.unlockKey(key)
	<-done
	if n := sink.attempts(""); n != 0 {
		t.Errorf("got %d attempts on a disabled sink, want 0", n)
	}
}
