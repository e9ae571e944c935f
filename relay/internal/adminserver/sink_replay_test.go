package adminserver

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/replay"
)

func TestReplayRequest_Selects(t *testing.T) {
	t.Parallel()
	const first, second = "019aa0c2f4e17b3c00000001", "019aa0c2f4e17b3c00000002"
	operational := relay.Notification{ID: first, Topic: relay.TopicSinkDisabled, Hub: "h"}
	job := relay.Notification{ID: "j", Topic: "job.created", Hub: "h"}
	other := relay.Notification{ID: second, Topic: "job.created", Hub: "other"}
	for name, tc := range map[string]struct {
		request adminapi.ReplayRequest
		want    [3]bool // operational, job, other
	}{
		"all":     {adminapi.ReplayRequest{After: "0-0"}, [3]bool{true, true, true}},
		"a hub":   {adminapi.ReplayRequest{After: "0-0", HubID: "h"}, [3]bool{true, true, false}},
		"a topic": {adminapi.ReplayRequest{After: "0-0", Topics: []string{"job.*"}}, [3]bool{false, true, true}},
		"IDs":     {adminapi.ReplayRequest{EventIDs: []string{first, second}}, [3]bool{true, false, true}},
		"both":    {adminapi.ReplayRequest{EventIDs: []string{first, second}, Topics: []string{"job.*"}}, [3]bool{false, false, true}},
	} {
		selection, err := newReplaySelection(tc.request, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		got := [3]bool{selection.Selects(operational), selection.Selects(job), selection.Selects(other)}
		if got != tc.want {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
	if _, err := newReplaySelection(adminapi.ReplayRequest{EventIDs: []string{"x"}}, time.Now()); err == nil {
		t.Error("an ID that is none was accepted")
	}
}

// interruptedSinks lose Redis during a replay.
type interruptedSinks struct{ Sinks }

func (interruptedSinks) ReplaySink(context.Context, string, replay.Selection) (replay.Result, error) {
	return replay.Result{Scheduled: 5, Next: "12-3"}, redisconn.WrapError("read the log", io.EOF)
}

func (interruptedSinks) DropDeliveries(context.Context, string, []string) (adminapi.ChangeResult, error) {
	return adminapi.NewChangeResult(5), redisconn.WrapError("signal a change of sinks", io.EOF)
}

func (interruptedSinks) DropDeadLetters(context.Context, string, []string) (store.ChangeResult, error) {
	return store.ChangeResult{Done: 5}, redisconn.WrapError("drop dead letters", io.EOF)
}

// The error of an interrupted change contains the number of changed items.
func TestChange_Interrupted(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"deliveries/drop", "deadletters/drop"} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/api/sinks/hook/"+path, strings.NewReader(`{"ids":["a"]}`))
		r.Host = ""
		newOpen(Options{Sinks: interruptedSinks{}}).ServeHTTP(w, r)
		if w.Code != 503 || !strings.Contains(w.Body.String(), "5 were dropped before that") ||
			!strings.Contains(w.Body.String(), `"changed":5`) {
			t.Errorf("%s: got %d %s", path, w.Code, w.Body)
		}
	}
}

// brokenQuarantine loses Redis during a change.
type brokenQuarantine struct {
	Quarantine
	err error
}

func (q brokenQuarantine) DropQuarantined(context.Context, []string) ([]string, error) {
	return nil, q.err
}

// The error of a change says if it may have been made.
func TestChange_ReplyIsLost(t *testing.T) {
	t.Parallel()
	for cause, want := range map[error]bool{
		os.ErrDeadlineExceeded:                         true,
		&net.OpError{Op: "dial", Err: io.EOF}:          false,
		errors.New("redis: all sentinels are offline"): false,
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/api/quarantine/drop", strings.NewReader(`{"ids":["a"]}`))
		r.Host = ""
		q := brokenQuarantine{err: redisconn.WrapError("drop entries", cause)}
		newOpen(Options{Quarantine: q}).ServeHTTP(w, r)
		if got := strings.Contains(w.Body.String(), "may have been made"); w.Code != 503 || got != want {
			t.Errorf("%v: got %d %s", cause, w.Code, w.Body)
		}
	}
}

func TestReplaySink_Interrupted(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/api/sinks/hook/replay", strings.NewReader(`{"after":"1h"}`))
	r.Host = ""
	newOpen(Options{Sinks: interruptedSinks{}}).ServeHTTP(w, r)
	if w.Code != 503 || !strings.Contains(w.Body.String(), "5 were scheduled before: continue after 12-3") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}
