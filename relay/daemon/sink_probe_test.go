package daemon

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

func (s *fakeSink) setError(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// The open circuit breaker is visible, and an operator who has fixed the destination need not wait for the next
// probe.
func TestSinkAdmin_ProbesDownSinkNow(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"resume", "test"} {
		t.Run(verb, func(t *testing.T) {
			sink := &fakeSink{}
			sink.setError(errors.New("far away"))
			r := startDaemon(t, sink, memoryURL, `one: {type: memory, retry: {schedule: [1h]}}`)
			for range 10 {
				r.publish("job.created")
			}
			testkit.WaitFor(t, "the state down", func() bool {
				return r.data("GET", "/api/sinks/one", "")["state"] == "down"
			})
			if got := r.data("POST", "/api/sinks/one/test", ""); got["outcome"] != "retry" {
				t.Errorf("tested: %v", got)
			}
			sink.setError(nil)
			r.data("POST", "/api/sinks/one/"+verb, "")
			got := r.data("GET", "/api/sinks/one", "")
			until, err := time.Parse(time.RFC3339, fmt.Sprint(got["next_attempt_at"]))
			if err != nil || until.After(time.Now()) || got["state"] != "down" || got["reason"] == nil {
				t.Errorf("after %s: got %v, %v", verb, got, err)
			}
			r.publish("job.created") // the probe
			testkit.WaitFor(t, "it answers", func() bool {
				got = r.data("GET", "/api/sinks/one", "")
				return got["state"] == "active" && got["next_attempt_at"] == nil
			})
			r.stop()
		})
	}
}

// A retry counts all deliveries of the list, also while the breaker is open, and all of them are delivered.
func TestSinkAdmin_RetriesDownSink(t *testing.T) {
	t.Parallel()
	sink := &fakeSink{}
	sink.setError(errors.New("far away"))
	r := startDaemon(t, sink, memoryURL, `one: {type: memory, retry: {schedule: [1h]}}`)
	defer r.stop()
	for range 10 {
		r.publish("job.created")
	}
	number := func(of map[string]any, key string) int { n, _ := of[key].(float64); return int(n) }
	testkit.WaitFor(t, "the state down", func() bool {
		got := r.data("GET", "/api/sinks/one", "")
		return got["state"] == "down" && number(got, "retrying") == 10
	})
	for range 3 {
		r.publish("job.created")
	}
	retry := func() map[string]any {
		got, _ := r.call(200, "POST", "/api/sinks/one/retry", "")["data"].(map[string]any)
		return got
	}
	testkit.WaitForValue(t, "all to wait", 13, func() int {
		got := r.data("GET", "/api/sinks/one", "")
		return number(got, "waiting") + number(got, "retrying")
	})
	got := retry()
	before, _ := got["sink"].(map[string]any)
	started, retrying := number(got, "started"), number(before, "retrying")
	// A probe in progress does not start again.
	if started < retrying-1 || started > retrying || number(before, "waiting")+retrying != 13 || before["state"] != "down" {
		t.Errorf("retried %v", got)
	}
	sink.setError(nil)
	retry()
	testkit.WaitForValue(t, "all are delivered", 13, func() int { return sink.count() })
}

// A pause that the destination requested is visible. Only resume ends it.
func TestSinkAdmin_EndsThrottling(t *testing.T) {
	t.Parallel()
	sink := &fakeSink{}
	sink.setError(relay.RetryAfter(&relay.ResponseError{Status: 429}, time.Hour))
	r := startDaemon(t, sink, memoryURL, oneSink)
	r.publish("job.created")
	testkit.WaitFor(t, "it rests", func() bool { return r.data("GET", "/api/sinks/one", "")["state"] == "throttled" })
	r.data("POST", "/api/sinks/one/retry", "")
	got := r.data("GET", "/api/sinks/one", "")
	until, err := time.Parse(time.RFC3339, fmt.Sprint(got["next_attempt_at"]))
	if err != nil || !until.After(time.Now()) || got["state"] != "throttled" {
		t.Errorf("retried: %v, %v", got, err)
	}
	sink.setError(nil)
	if got := r.data("POST", "/api/sinks/one/resume", ""); got["state"] != "active" || got["next_attempt_at"] != nil {
		t.Errorf("resumed: %v", got)
	}
	r.stop()
}
