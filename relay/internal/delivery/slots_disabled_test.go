package delivery

import (
	"context"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/delivery/admission"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// A slot that was set aside for a retry must not stay so when the sink is disabled before the retry is claimed: where
// another node settles what was due, nothing would ever ask for the slot again.
func TestReservedSlotIsGivenBackWhenDisabled(t *testing.T) {
	t.Parallel()
	p, err := New(Options{Name: "s", Sink: &fakeSink{answer: answers(nil)}, Store: store.New(nil, testKeys()), Concurrency: 1})
	if err != nil {
		t.Fatal(err)
	}
	p.state.set(store.StateActive, "")
	var permit admission.Permit
	if err := p.admission.Acquire(t.Context(), &permit); err != nil {
		t.Fatal(err)
	}
	p.admission.Reserve(1).Close(0, true) // more was due than there were slots
	permit.Cancel()
	p.state.set(store.StateDisabled, "gone")
	p.Poll(true, false)
	p.state.set(store.StateActive, "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := p.admission.Acquire(ctx, &permit); err != nil {
		t.Errorf("a fresh delivery waits for a slot that nobody uses: %v", err)
	}
}
