package adminserver

import (
	"context"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay/internal/delivery"
	"github.com/hubrelay/hubrelay/relay/internal/history"
)

// fakeEvents has one event, and records the queries.
type fakeEvents struct {
	Sinks
	query     history.Query
	selection delivery.Selection
}

func (f *fakeEvents) Search(_ context.Context, q history.Query) (history.Result, error) {
	f.query = q
	if q.Before == "bad" {
		return history.Result{}, history.ErrInvalidCursor
	}
	return history.Result{Next: "5-0.0", SearchedTo: time.Unix(1, 0).UTC()}, nil
}

func (f *fakeEvents) ShowEvent(context.Context, string) (adminapi.EventDetails, error) {
	return adminapi.EventDetails{Payload: []byte(`"secret-1"`), Sinks: []adminapi.EventSink{
		{State: adminapi.DeliveryNotMatched, Reason: "when: secret-3", Detail: "secret-2"}, {State: adminapi.DeliveryDropped, Detail: "shown"},
	}}, nil
}

func (f *fakeEvents) ListDeliveries(
	_ context.Context, sel delivery.Selection,
) (page adminapi.Page[adminapi.Delivery], err error) {
	f.selection = sel
	return page, nil
}

// A viewer sees what happened to an event, but neither the data of its account nor the conditions of the configuration.
func TestShowEvent_HidesPayloadFromViewer(t *testing.T) {
	f := new(fakeEvents)
	a := newWithTokens(Options{Sinks: f, Events: f})
	for role, secrets := range map[adminapi.Role]int{adminapi.RoleViewer: 0, adminapi.RoleOperator: 3, adminapi.RoleAdmin: 3} {
		r := httptest.NewRequest("GET", "http://127.0.0.1/api/events/6f9c2b1e8a3d4c0017e50001", nil)
		r.Header.Set("Authorization", "bearer secret-of-"+string(role))
		w := httptest.NewRecorder()
		a.ServeHTTP(w, r)
		body := w.Body.String()
		if w.Code != 200 || strings.Count(body, "secret-") != secrets || !strings.Contains(body, "shown") ||
			(secrets == 0) != strings.Contains(body, `"reason":"when"`) ||
			(secrets == 0) != strings.Contains(body, `"payload":null`) {
			t.Errorf("%s: got %d %s", role, w.Code, body)
		}
	}
}

func TestEvents_Queries(t *testing.T) {
	f := new(fakeEvents)
	a := newWithTokens(Options{Sinks: f, Events: f})
	request := func(path string) (status int, body string) {
		r := httptest.NewRequest("GET", "http://127.0.0.1/api/"+path, nil)
		r.Header.Set("Authorization", "bearer secret-of-viewer")
		w := httptest.NewRecorder()
		a.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	status, body := request("events?object_id=o&container_id=c&topics=job.*&hub_id=h&publisher=ops&since=24h&limit=9999")
	if q := f.query; status != 200 || body != `{"data":[],"next":"5-0.0","searched_to":"1970-01-01T00:00:01Z"}`+"\n" ||
		q.Object != "o" || q.Filter.Containers[0] != "c" || q.Filter.Topics.String() != "job.*" || q.Filter.Hubs[0] != "h" ||
		q.Publisher != "ops" || time.Since(q.Since) < 23*time.Hour || !q.Until.IsZero() || q.Limit != maxEventPage {
		t.Errorf("got %d %s and the query %+v", status, body, q)
	}
	status, body = request("deliveries?sink=a&states=dead,retrying&topics=job.*&since=1h&after=x&limit=3")
	if s := f.selection; status != 200 || body != `{"data":[],"next":""}`+"\n" || s.Sink != "a" || len(s.States) != 2 ||
		s.Topics.String() != "job.*" || s.After != "x" || s.Limit != 3 || s.Since.IsZero() {
		t.Errorf("got %d %s and the selection %+v", status, body, s)
	}
	for path, want := range map[string]string{
		"events?after=bad":                 "after is not",
		"events?topics=[":                  "topics",
		"events?since=soon":                "since is neither",
		"events?until=soon":                "until is neither",
		"events?since=1h&until=2h":         "until is not later",
		"events?limit=0":                   "limit",
		"events?account_id=a&account_id=b": "the parameter account_id is given 2 times: give it once",
		"events?contaner_id=c":             "did you mean container_id?",
		"deliveries?states=wating":         "did you mean waiting?",
		"deliveries?states=not_matched":    "the states are",
		"deliveries?topics=[&states=dead":  "topics",
		"deliveries?since=soon":            "since is neither",
	} {
		if status, body := request(path); status != 422 || !strings.Contains(body, want) {
			t.Errorf("%s: got %d %s, want %q", path, status, body, want)
		}
	}
}

// blockedEvents blocks each search until its context ends, or proceed is closed.
type blockedEvents struct{ running, proceed chan struct{} }

func (e blockedEvents) Search(ctx context.Context, _ history.Query) (history.Result, error) {
	e.running <- struct{}{}
	select {
	case <-e.proceed:
		return history.Result{}, nil
	case <-ctx.Done():
		return history.Result{}, ctx.Err()
	}
}

func TestAPI_LimitsSearches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := blockedEvents{make(chan struct{}, 10), make(chan struct{})}
		a := newOpen(Options{Events: e})
		var wg sync.WaitGroup
		for range maxSearches {
			wg.Go(func() {
				if w := get(a, "GET", "/api/events", "127.0.0.1"); w.Code != 200 {
					t.Errorf("got %d %s, want 200", w.Code, w.Body)
				}
			})
		}
		synctest.Wait()
		start := time.Now()
		if w := get(a, "GET", "/api/events", "127.0.0.1"); w.Code != 503 || !strings.Contains(w.Body.String(), "too many searches") {
			t.Errorf("got %d %s, want 503", w.Code, w.Body)
		}
		if waited := time.Since(start); waited != maxSearchWait {
			t.Errorf("waited %s, want %s", waited, maxSearchWait)
		}
		for _, path := range []string{
			"/api/audit", "/api/quarantine", "/api/sinks/a/deadletters", "/api/events/a",
		} {
			if w := get(a, "GET", path, "127.0.0.1"); w.Code != 503 || !strings.Contains(w.Body.String(), "too many searches") {
				t.Errorf("%s: got %d %s, want 503", path, w.Code, w.Body)
			}
		}
		if n := len(e.running); n != maxSearches {
			t.Errorf("%d searches were running, want %d", n, maxSearches)
		}
		close(e.proceed)
		wg.Wait()
	})
}
