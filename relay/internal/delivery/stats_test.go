package delivery

import (
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
)

// The state of a sink on a node begins when it was first seen, and again after another state.
func TestNodeStates(t *testing.T) {
	t.Parallel()
	var n nodeStates
	start := time.Now()
	at := func(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }
	see := func(state adminapi.SinkState, minutes int) {
		n.updateStates(map[string]stateSince{"s": {state, at(minutes)}})
	}
	see(adminapi.SinkDown, 0)
	see(adminapi.SinkDown, 1)
	if got := n.sinceOf("s", adminapi.SinkDown); !got.Equal(start) {
		t.Errorf("got %s, want the first time %s", got, start)
	}
	if got := n.sinceOf("s", adminapi.SinkThrottled); !got.IsZero() {
		t.Errorf("another state: got %s, want zero", got)
	}
	see(adminapi.SinkActive, 2)
	see(adminapi.SinkDown, 3)
	if got := n.sinceOf("s", adminapi.SinkDown); !got.Equal(at(3)) {
		t.Errorf("down again: got %s, want %s", got, at(3))
	}
	if before := n.updateStates(nil); before["s"].state != adminapi.SinkDown || !n.sinceOf("s", adminapi.SinkDown).IsZero() {
		t.Errorf("removed sink: got %v", before)
	}
}
