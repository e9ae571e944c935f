package host

import (
	"runtime/pprof"
	"strings"
	"testing"
)

// The host reads no messages of go-plugin's broker. Each would start a goroutine.
func TestHost_RejectsBroker(t *testing.T) {
	t.Parallel()
	r := newRig(t, "sdk", nil)
	r.mustDeliver("a")
	r.until("the broker of the client has ended", func() bool {
		var stacks strings.Builder
		if err := pprof.Lookup("goroutine").WriteTo(&stacks, 2); err != nil {
			t.Fatal(err)
		}
		return !strings.Contains(stacks.String(), "go-plugin.(*GRPCBroker).") &&
			!strings.Contains(stacks.String(), "go-plugin.(*gRPCBrokerClientImpl).")
	})
	r.mustDeliver("b")
	if s := r.Status(); s.State != StateRunning || r.count(EventStarted) != 1 {
		t.Errorf("got %+v, events %v, want one start", s, r.events)
	}
}
