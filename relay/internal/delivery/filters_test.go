package delivery

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/metrics"
)

func TestNewFilter(t *testing.T) {
	t.Parallel()
	n := relay.Notification{
		Topic: "job.error", Hub: "h", Account: "a",
		Data: json.RawMessage(`{"topic":"job.error","object":{"id":"o","state":"x","error":"y"},` +
			`"context":{"environments":["e"],"clusters":["c"],"containers":["k"]}}`),
	}
	all := config.Sink{
		Topics: []string{"*.error"}, Hubs: []string{"h"}, Accounts: []string{"a"}, Environments: []string{"e"},
		Clusters: []string{"c"}, Containers: []string{"k"}, When: `object.state == "x"`,
	}
	for name, change := range map[string]func(*config.Sink){
		"":             func(*config.Sink) {},
		"topics":       func(s *config.Sink) { s.Topics = []string{"hub.*"} },
		"hubs":         func(s *config.Sink) { s.Hubs = []string{"other"} },
		"accounts":     func(s *config.Sink) { s.Accounts = []string{"other"} },
		"environments": func(s *config.Sink) { s.Environments = []string{"other"} },
		"clusters":     func(s *config.Sink) { s.Clusters = []string{"other"} },
		"containers":   func(s *config.Sink) { s.Containers = []string{"other"} },
		"when":         func(s *config.Sink) { s.When = `object.state == "z"` },
	} {
		cfg := all
		change(&cfg)
		filter, err := newFilter(cfg)
		if err != nil {
			t.Fatal(err)
		}
		passes, reason := filter.Explain(n)
		if want := name == ""; passes != want || filter.Match(n) != want || !strings.HasPrefix(reason, name) {
			t.Errorf("%s: %v, %s", name, passes, reason)
		}
	}
	for _, bad := range []config.Sink{{When: "objct"}, {Topics: []string{"A"}}} {
		if _, err := newFilter(bad); err == nil {
			t.Errorf("accepted %v", bad)
		}
	}
}

// If a condition fails, the notification matches. Each failure is counted, but logged only once a minute.
func TestMonitorCondition_CountsFailures(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	counts := metrics.New("test")
	fails := func(e *relay.Envelope) (bool, error) {
		if e.Topic == "job.error" {
			return false, errors.New("no answer")
		}
		return e.Topic == "job.created", nil
	}
	sinks := []*openSink{{name: "plain"}, {name: "picky", filter: relay.Filter{When: fails}}}
	for _, s := range sinks {
		monitorCondition(s, counts, slog.New(slog.NewTextHandler(&out, nil)))
	}
	if sinks[0].filter.NeedsEnvelope() {
		t.Error("a sink without a condition received one")
	}
	for topic, want := range map[string]bool{"job.error": true, "job.created": true, "job.updated": false} {
		for range 3 {
			if got := sinks[1].filter.MatchEnvelope(&relay.Envelope{Topic: topic}); got != want {
				t.Errorf("%s: %v", topic, got)
			}
		}
	}
	page := httptest.NewRecorder()
	counts.Handler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if want := `hubrelay_sink_condition_failures_total{sink="picky"} 3`; !strings.Contains(page.Body.String(), want) {
		t.Errorf("no %s in\n%s", want, page.Body)
	}
	if strings.Count(out.String(), "\n") != 1 || !strings.Contains(out.String(), "sink=picky") {
		t.Errorf("logged:\n%s", out.String())
	}
}

func TestMonitoredCondition_LogsOncePerMinute(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	now := time.Unix(1000, 0)
	w := &monitoredCondition{
		condition: func(*relay.Envelope) (bool, error) { return false, errors.New("no answer") },
		count:     func() {},
		now:       func() time.Time { return now }, log: slog.New(slog.NewTextHandler(&out, nil)),
	}
	for range 130 {
		if _, err := w.evaluate(&relay.Envelope{}); err == nil {
			t.Fatal("evaluate returned no error")
		}
		now = now.Add(time.Second)
	}
	if got := strings.Count(out.String(), "failure_count=60"); got != 2 || strings.Count(out.String(), "\n") != 3 {
		t.Errorf("logged:\n%s", out.String())
	}
}
