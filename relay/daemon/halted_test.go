package daemon

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

func (s *moodySink) fails(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// A sink whose destination is down is seen to be, and somebody who has mended it need not wait for the next probe.
func TestDownAndHurried(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"resume", "test"} {
		t.Run(verb, func(t *testing.T) {
			sink := &moodySink{}
			sink.fails(errors.New("far away"))
			r := runWith(t, sink, memoryURL, `one: {type: memory, retry: {schedule: [1h]}}`)
			for range 10 {
				r.publish("job.created")
			}
			testkit.WaitFor(t, "it is down", func() bool { return r.data("GET", "/api/sinks/one", "")["state"] == "down" })
			if got := r.data("POST", "/api/sinks/one/test", ""); got["outcome"] != "retry" {
				t.Errorf("tested: %v", got)
			}
			sink.fails(nil)
			r.data("POST", "/api/sinks/one/"+verb, "")
			got := r.data("GET", "/api/sinks/one", "")
			until, err := time.Parse(time.RFC3339, fmt.Sprint(got["down_until"]))
			if err != nil || until.After(time.Now()) || got["state"] != "down" || got["reason"] == nil {
				t.Errorf("hurried: %v, %v", got, err)
			}
			r.publish("job.created") // the probe
			testkit.WaitFor(t, "it answers", func() bool {
				got = r.data("GET", "/api/sinks/one", "")
				return got["state"] == "active" && got["down_until"] == nil
			})
			r.stop()
		})
	}
}

// A rest that the destination asked for is shown, and nobody shortens it.
func TestResting(t *testing.T) {
	t.Parallel()
	sink := &moodySink{}
	sink.fails(relay.RetryAfter(&relay.ResponseError{Status: 429}, time.Hour))
	r := runWith(t, sink, memoryURL, oneSink)
	r.publish("job.created")
	testkit.WaitFor(t, "it rests", func() bool { return r.data("GET", "/api/sinks/one", "")["state"] == "resting" })
	r.data("POST", "/api/sinks/one/resume", "")
	got := r.data("GET", "/api/sinks/one", "")
	until, err := time.Parse(time.RFC3339, fmt.Sprint(got["resting_until"]))
	if err != nil || !until.After(time.Now()) || got["state"] != "resting" || got["down_until"] != nil {
		t.Errorf("resumed: %v, %v", got, err)
	}
	r.stop()
}
