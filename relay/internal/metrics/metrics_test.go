package metrics

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
)

func scrape(m *Metrics) string {
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

// All time series of a configured sink exist before the first event, because rate() ignores the first value.
func TestMetrics_InitSink(t *testing.T) {
	m := New("v1.2.3")
	m.InitSink("billing")
	m.Batched("billing", 0)
	text := scrape(m)
	for _, want := range []string{
		`enqueued_total{`, `dropped_total{`, `retries_total{`, `dead_letters_total{`, `batched_events_total{`,
		`attempts_total{result="delivered",`, `attempts_total{result="dns",`, `attempts_total{result="other",`,
		`attempt_duration_seconds_count{`, `waiting{`, `retrying{`, `dead{`, `oldest_age_seconds{`,
		`last_success_timestamp_seconds{`, `in_flight{`,
	} {
		if !strings.Contains(text, "hubrelay_sink_"+want+`sink="billing"} 0`+"\n") {
			t.Errorf("missing: %s", want)
		}
	}
}

func TestMetrics(t *testing.T) {
	m := New("v1.2.3")
	m.Accepted("container.instance.error")
	m.Accepted("container.created")
	m.RequestRejected(relay.CodeTooLarge)
	m.InboxStored(5)
	m.InboxRepeated(1)
	m.InboxQuarantined(2)
	m.Connected()
	m.Connected()
	m.Disconnected("slow")
	m.Queued(7, 700)
	m.Enqueued("billing", 3)
	m.TrimmedBeforeEnqueue(0, 6)
	m.Gap()
	m.Dropped("billing", 4)
	m.InitSink("billing")
	m.Attempted("billing", 2, "tls", 20*time.Millisecond)
	m.DeadLettered("billing", "permanent")
	m.RetryLost("billing")
	m.SetStateFunc("billing", func() adminapi.SinkState { return adminapi.SinkDisabled })
	m.Backlog("billing", 12, 3, 1)
	m.Oldest("billing", 90*time.Second)
	m.LastSuccess("billing", time.Unix(1732153000, 5e8))
	m.SetInFlightFunc("billing", func() int64 { return 5 })
	m.RedisUp(true)
	m.RedisRestarted()
	text := scrape(m)
	for _, want := range []string{
		`hubrelay_events_accepted_total{family="container"} 2`,
		`hubrelay_requests_rejected_total{code="413.too-large"} 1`,
		`hubrelay_inbox_entries_total{result="stored"} 5`,
		`hubrelay_inbox_entries_total{result="repeated"} 1`,
		`hubrelay_inbox_entries_total{result="quarantined"} 2`,
		`hubrelay_stream_clients 1`,
		`hubrelay_stream_clients_closed_total{reason="slow"} 1`,
		`hubrelay_stream_clients_closed_total{reason="silent"} 0`,
		`hubrelay_stream_frames_total 7`,
		`hubrelay_stream_bytes_total 700`,
		`hubrelay_sink_enqueued_total{sink="billing"} 3`,
		`hubrelay_log_events_missed_total 6`,
		`hubrelay_sink_retries_total{sink="billing"} 1`,
		`hubrelay_retries_lost_total 1`,
		`hubrelay_sink_state{sink="billing",state="disabled"} 1`,
		`hubrelay_sink_state{sink="billing",state="active"} 0`,
		`hubrelay_log_gaps_total 1`,
		`hubrelay_sink_dropped_total{sink="billing"} 4`,
		`hubrelay_sink_attempt_duration_seconds_bucket{sink="billing",le="0.025"} 1`,
		`hubrelay_sink_attempts_total{result="tls",sink="billing"} 1`,
		`hubrelay_sink_attempts_total{result="delivered",sink="billing"} 0`,
		`hubrelay_sink_dead_letters_total{sink="billing"} 1`,
		`hubrelay_sink_waiting{sink="billing"} 12`,
		`hubrelay_sink_retrying{sink="billing"} 3`,
		`hubrelay_sink_dead{sink="billing"} 1`,
		`hubrelay_sink_oldest_age_seconds{sink="billing"} 90`,
		`hubrelay_sink_last_success_timestamp_seconds{sink="billing"} 1.7321530005e+09`,
		`hubrelay_sink_in_flight{sink="billing"} 5`,
		`hubrelay_redis_up 1`,
		`hubrelay_embedded_redis_restarts_total 1`,
		`hubrelay_build_info{version="v1.2.3"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("missing: %s", want)
		}
	}
	if n := strings.Count(text, `sink="billing"`); n > 40 {
		t.Errorf("a sink has %d series, want at most 40", n)
	}
	problems, err := testutil.GatherAndLint(m.registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems { // the rules of `promtool check metrics`
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	m.RemoveSink("billing")
	if text := scrape(m); strings.Contains(text, "billing") {
		t.Error("a removed sink has series")
	}
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok &&
			!strings.HasPrefix(name, "hubrelay_") && !strings.HasPrefix(name, "go_") &&
			!strings.HasPrefix(name, "process_") {
			t.Errorf("unexpected metric: %s", line)
		}
	}
}

// TestMetrics_Stream checks gauges that are evaluated at each scrape and gauges that are set.
func TestMetrics_Stream(t *testing.T) {
	m := New("v0")
	m.SetQueueFunc(func() (clients, bytes int) { return 3, 4096 })
	m.ReplayStarted()
	m.ReplayStarted()
	m.ReplayEnded(true)
	m.Delayed(30 * time.Millisecond)
	m.Delayed(-time.Second) // the clock of Redis is ahead
	m.Lag(0, 1500*time.Millisecond)
	text := scrape(m)
	for _, want := range []string{
		"hubrelay_stream_queued_clients 3", "hubrelay_stream_queued_bytes 4096", "hubrelay_stream_replays 1",
		`hubrelay_stream_delay_seconds_bucket{le="0.001"} 1`, `hubrelay_stream_delay_seconds_bucket{le="0.1"} 2`,
		`hubrelay_stream_lag_seconds{partition="0"} 1.5`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("missing: %s", want)
		}
	}
}
