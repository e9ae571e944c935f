package history

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

func TestSinkChanges(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, c *redisconn.Conn) {
		s := NewStore(c, c.Keys())
		r, _ := newRecorder(t, s, "node-a", Retention{})
		for i := range 150 {
			r.RecordSinkChange(SinkChange{Sink: "other", State: "paused", Actor: fmt.Sprint("admin ", i)})
		}
		r.RecordSinkChange(SinkChange{Sink: "hook", State: "paused", Actor: "admin alice"})
		r.RecordSinkChange(SinkChange{Sink: "hook", State: "down", Actor: "relay", Reason: strings.Repeat("x", 1000), Node: "node-a"})
		r.flush(t.Context())
		list, err := s.SinkChanges(t.Context(), "hook", 10)
		if err != nil || len(list) != 2 {
			t.Fatalf("got %+v, %v, want two changes", list, err)
		}
		if c := list[0]; c.State != "down" || c.Node != "node-a" || len(c.Reason) != maxErrorBytes || time.Since(c.Time) > time.Hour {
			t.Errorf("got %+v", c)
		}
		if c := list[1]; c.State != "paused" || c.Actor != "admin alice" || c.Node != "" || c.Reason != "" {
			t.Errorf("got %+v", c)
		}
		if list, err := s.SinkChanges(t.Context(), "other", 1000); err != nil || len(list) != maxSinkChanges || list[0].Actor != "admin 149" {
			t.Errorf("got %d changes, %v, want the newest %d", len(list), err, maxSinkChanges)
		}
		if err := s.ForgetSink(t.Context(), "hook"); err != nil {
			t.Fatal(err)
		}
		if list, err := s.SinkChanges(t.Context(), "hook", 10); err != nil || len(list) != 0 {
			t.Errorf("a forgotten sink: got %+v, %v", list, err)
		}
		var none *Recorder
		none.RecordSinkChange(SinkChange{})
	})
}
