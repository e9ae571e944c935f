package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/client"
)

// A proxy without websockets that sometimes responds with 429 does not end the wait for a job.
func TestFollowJob_PollsWithoutStream(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if !strings.HasPrefix(r.URL.Path, "/v1/jobs/") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		switch requests.Add(1) {
		case 1:
			_, _ = fmt.Fprint(w, `{"data":{"id":"j","state":{"current":"running"}}}`)
		case 2:
			w.WriteHeader(http.StatusTooManyRequests)
		default:
			_, _ = fmt.Fprint(w, `{"data":{"id":"j","state":{"current":"completed"}}}`)
		}
	}))
	t.Cleanup(server.Close)
	j, err := followJob(t.Context(), &client.Client{URL: server.URL, Key: "k", Hub: "h"}, "j", func(relay.Job) {})
	if err != nil || j.State.Current != relay.JobCompleted {
		t.Errorf("%+v, %v", j, err)
	}
}

// followJob does not repeat a request that the relay rejects, such as one with an invalid key.
func TestFollowJob_ReturnsRejection(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	t.Cleanup(server.Close)
	if _, err := followJob(t.Context(), &client.Client{URL: server.URL, Key: "k", Hub: "h"}, "j",
		func(relay.Job) {}); !isRejected(err) {
		t.Error(err)
	}
}

// The stream can send a step that a request has already returned. It must not be shown twice.
func TestIsOlder(t *testing.T) {
	t.Parallel()
	first := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	step := func(state relay.JobState, after time.Duration, progress int) (s relay.JobTask) {
		at := first.Add(after)
		s.State.Current, s.State.Changed, s.Progress = state, &at, progress
		return s
	}
	for _, c := range []struct {
		name     string
		t, known relay.JobTask
		want     bool
	}{
		{"no known state", step(relay.JobRunning, 0, 0), relay.JobTask{}, false},
		{"no updates", relay.JobTask{}, step(relay.JobRunning, 0, 0), true},
		{"running, known as completed", step(relay.JobRunning, 0, 0), step(relay.JobCompleted, time.Second, 100), true},
		{
			"completed, known as running", step(relay.JobCompleted, time.Second, 100), step(relay.JobRunning, 0, 0),
			false,
		},
		{
			"running, known as completed at the same time", step(relay.JobRunning, 0, 0),
			step(relay.JobCompleted, 0, 100), true,
		},
		{
			"completed, known as running at the same time", step(relay.JobCompleted, 0, 100),
			step(relay.JobRunning, 0, 0), false,
		},
		{"less progress", step(relay.JobRunning, 0, 40), step(relay.JobRunning, 0, 60), true},
		{"more progress", step(relay.JobRunning, 0, 60), step(relay.JobRunning, 0, 40), false},
		{"restarted by another node", step(relay.JobRunning, time.Minute, 0), step(relay.JobRunning, 0, 60), false},
	} {
		if got := isOlder(c.t, c.known); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestFormatNotification_TruncatesError(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ü", 5000)
	n := relay.Notification{
		Topic: "container.error",
		Data: []byte(`{"topic":"container.error","object":{"id":"x","error":"` + long +
			`"},"context":{"hub_id":"h"}}`),
	}
	got := formatNotification(term.Palette{}, n)
	if len(got) > 400 || !strings.Contains(got, "error=üü") ||
		!strings.HasSuffix(got, " object=x hub=h") {
		t.Errorf("%d bytes: %s", len(got), got)
	}
}
