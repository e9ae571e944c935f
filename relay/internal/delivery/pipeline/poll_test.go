package pipeline

import (
	"context"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/delivery/admission"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// A slot that is reserved for a retry must be released when the sink is disabled before the claim. If another node
// settles what was due, nothing would release it later.
func TestPipeline_PollReleasesReservedSlot(t *testing.T) {
	t.Parallel()
	p, err := New(
		Options{Name: "s", Sink: &fakeSink{answer: answers(nil)}, Store: store.New(nil, testKeys()), Concurrency: 1},
	)
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
		t.Errorf("Acquire() = %v while a slot is reserved for no retry", err)
	}
}
