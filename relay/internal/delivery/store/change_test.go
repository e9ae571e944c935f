package store

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// Single deliveries are retried and dropped on a full Redis, too.
func TestRetries_ChangeSingleDeliveries(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	key := fmt.Sprintf("%024x", 7)
	s.schedule(t, "running", "", 0)
	if r := s.poll(t, PollRequest{Sink: testSink, MaxClaims: 1, Lease: time.Minute}); len(r.Claims) != 1 {
		t.Fatalf("got %+v, want one claim", r)
	}
	s.schedule(t, "later", "", time.Hour)
	s.schedule(t, "first", key, time.Hour)
	s.schedule(t, "second", key, time.Hour)
	if err := s.Commands().ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	ids := []string{"later", "running", "second", "missing"}
	statuses, err := s.Retries.MakeDueIDs(t.Context(), testSink, ids)
	if want := []ChangeStatus{Changed, UnchangedRunning, UnchangedBlocked, UnchangedMissing}; err != nil || !slices.Equal(statuses, want) {
		t.Errorf("MakeDueIDs: got %v, %v, want %v", statuses, err, want)
	}
	dropped, err := s.Retries.Drop(t.Context(), testSink, []string{"first", "running", "missing"})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []ChangeStatus{Changed, UnchangedRunning, UnchangedMissing} {
		if d := dropped[i]; d.Status != want || (d.Record != nil) != (want == Changed) {
			t.Errorf("Drop: got %+v, want %s", d, want)
		}
	}
	if n := dropped[0].Record.Notifications[0].Decode(); n.ID != "first" {
		t.Errorf("got the record of %q", n.ID)
	}
	r := s.poll(t, PollRequest{Sink: testSink, MaxClaims: 10, Lease: time.Minute})
	if got := listClaimed(r.Claims); !slices.Equal(got, []string{"later", "second"}) {
		t.Errorf("due are %v, want the retried one, and the one after the dropped one", got)
	}

	// The claim of a node that was killed ends. Then it does not protect the delivery.
	if err := s.Commands().ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	s.schedule(t, "abandoned", "", 0)
	if r := s.poll(t, PollRequest{Sink: testSink, MaxClaims: 1, Lease: time.Millisecond}); len(r.Claims) != 1 {
		t.Fatalf("got %+v, want one claim", r)
	}
	testkit.WaitFor(t, "the claim to end", func() bool {
		dropped, err := s.Retries.Drop(t.Context(), testSink, []string{"abandoned"})
		return err == nil && dropped[0].Status == Changed
	})
}
