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
func TestFollowJob_PollsWithoutPipeline(t *testing.T) {
	t.Parallel()
	var looks atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if !strings.HasPrefix(r.URL.Path, "/v1/jobs/") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		switch looks.Add(1) {
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

// A key that may not look at the job ends it at once.
func TestJobThatMayNotBeSeen(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	t.Cleanup(server.Close)
	if _, err := followJob(t.Context(), &client.Client{URL: server.URL, Key: "k", Hub: "h"}, "j",
		func(relay.Job) {}); !isRejected(err) {
		t.Error(err)
	}
}

// The pipeline can send a step that a request has returned already. It must not be shown twice.
func TestOlderStep(t *testing.T) {
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
		{"nothing was known", step(relay.JobRunning, 0, 0), relay.JobTask{}, false},
		{"no updates", relay.JobTask{}, step(relay.JobRunning, 0, 0), true},
		{"begun, while it is done", step(relay.JobRunning, 0, 0), step(relay.JobCompleted, time.Second, 100), true},
		{"done, while it has begun", step(relay.JobCompleted, time.Second, 100), step(relay.JobRunning, 0, 0), false},
		{"begun and done at once", step(relay.JobRunning, 0, 0), step(relay.JobCompleted, 0, 100), true},
		{"done and begun at once", step(relay.JobCompleted, 0, 100), step(relay.JobRunning, 0, 0), false},
		{"less far", step(relay.JobRunning, 0, 40), step(relay.JobRunning, 0, 60), true},
		{"farther", step(relay.JobRunning, 0, 60), step(relay.JobRunning, 0, 40), false},
		{"restarted by another node", step(relay.JobRunning, time.Minute, 0), step(relay.JobRunning, 0, 60), false},
	} {
		if got := isOlder(c.t, c.known); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestErrorIsShortened(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ü", 5000)
	n := relay.Notification{
		Topic: "container.error",
		Data: []byte(`{"topic":"container.error","object":{"id":"x","error":"` + long +
			`"},"context":{"hub_id":"h"}}`),
	}
	got := formatNotification(term.Palette{}, n)
	if len(got) > 400 || !strings.Contains(got, "error=üü") ||
		!strings.HasSuffix(got, " id=x hub=h") {
		t.Errorf("%d bytes: %s", len(got), got)
	}
}
