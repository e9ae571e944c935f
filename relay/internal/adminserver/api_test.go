package adminserver

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/audit"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// fakeSinks returns err and records the selection.
type fakeSinks struct {
	Sinks
	err error
	sel store.Selection
	ids []string
}

func (f *fakeSinks) ListSinks(context.Context, adminapi.PageRequest) (adminapi.Page[adminapi.Sink], error) {
	return adminapi.Page[adminapi.Sink]{}, f.err
}

func (f *fakeSinks) ShowSink(context.Context, string) (adminapi.Sink, error) {
	return adminapi.Sink{Name: "a"}, f.err
}
func (f *fakeSinks) PauseSink(context.Context, string, string) error { return f.err }
func (f *fakeSinks) RetrySink(context.Context, string) (adminapi.RetryResult, error) {
	return adminapi.RetryResult{Started: 3, Sink: adminapi.Sink{Name: "a"}}, f.err
}
func (f *fakeSinks) ForgetSink(context.Context, string, bool) error { return f.err }
func (f *fakeSinks) DropDeadLetters(_ context.Context, _ string, ids []string) (store.ChangeResult, error) {
	f.ids = ids
	return store.ChangeResult{Done: len(ids)}, f.err
}

func (f *fakeSinks) DropSelectedDeadLetters(
	_ context.Context, _ string, sel store.Selection,
) (store.ChangeResult, error) {
	f.sel = sel
	return store.ChangeResult{Done: 7, Next: "1-0~2-0"}, f.err
}

func (f *fakeSinks) ListDeadLetters(_ context.Context, _ string, sel store.Selection) (store.Page, error) {
	f.sel = sel
	return store.Page{Next: "5-0"}, f.err
}

func (f *fakeSinks) ShowDeadLetter(context.Context, string, string) (*store.DeadLetterContent, error) {
	return &store.DeadLetterContent{DeadLetter: store.DeadLetter{ID: "d"}, Raw: "junk"}, f.err
}

func TestAPI(t *testing.T) {
	for _, c := range []struct {
		method, path, body string
		err                error
		status             int
		contains           string
	}{
		{"GET", "/api/sinks", "", nil, 200, `{"data":[],"next":""}`},
		{"HEAD", "/api/sinks", "", nil, 200, ""},
		{"GET", "/api/sinks/a", "", nil, 200, `"name":"a"`},
		{"GET", "/api/sinks/a", "", relay.NewError(relay.CodeNoSink, "x"), 404, `"code":"404.sink"`},
		{"GET", "/api/sinks/a", "", errors.New("redis is away"), 503, "redis is away"},
		{"GET", "/api/nothing", "", nil, 404, `"code":"404.uri"`},
		{"GET", "/api/sinks/a/pause", "", nil, 405, `"code":"405.method"`},
		{"POST", "/api/sinks", "", nil, 405, `"code":"405.method"`},
		{"POST", "/api/sinks/a/pause", "", nil, 200, `"name":"a"`},
		{"POST", "/api/sinks/a/pause", `{"x":1}`, nil, 422, `"code":"422.invalid-argument"`},
		{"POST", "/api/sinks/a/pause", `{`, nil, 400, `"code":"400.invalid-syntax"`},
		{"POST", "/api/sinks/a/pause", `{} {}`, nil, 400, `"code":"400.invalid-syntax"`},
		{
			"POST", "/api/sinks/a/pause", `{"x":"` + strings.Repeat("x", maxRequest) + `"}`, nil, 413,
			`"code":"413.too-large"`,
		},
		{"POST", "/api/sinks/a/retry", "", nil, 200, `{"data":{"started":3,"on_other_node":false,"sink":{"name":"a"`},
		{"GET", "/api/sinks/a/deadletters?tpics=job.*", "", nil, 422, `did you mean topics?`},
		{"GET", "/api/sinks/a/deadletters?account=x", "", nil, 422, `there is no parameter \"account\"; the parameters are after, hub_id, limit, since, topics`},
		{"GET", "/api/sinks?account=x", "", nil, 422, `there is no parameter \"account\"; the parameters are after, limit`},
		{"GET", "/api/status?account=x", "", nil, 422, `there is no parameter \"account\"; this request has no parameters`},
		{"POST", "/api/sinks/a/retry", `{"x":1}`, nil, 422, `"code":"422.invalid-argument"`},
		{"POST", "/api/sinks/a/retry", "", relay.NewError(relay.CodeNoSink, "x"), 404, `"code":"404.sink"`},
		{"POST", "/api/sinks/a/replay", "", nil, 422, `"code":"422.missing-argument"`},
		{"POST", "/api/sinks/a/replay", `{"after":"10s","until":"1d"}`, nil, 422, `"source":"/until"`},
		{"GET", "/api/sinks/a/deadletters?limit=0", "", nil, 422, "limit"},
		{"GET", "/api/sinks/a/deadletters?since=soon", "", nil, 422, "since"},
		{"GET", "/api/sinks/a/deadletters", "", nil, 200, `{"data":[],"next":"5-0"}`},
		{"GET", "/api/sinks/a/deadletters/d", "", nil, 200, `"attempts":[],"events":[],"raw":"junk"`},
		{"GET", "/api/sinks/a/deadletters/d", "", store.ErrNoDeadLetter, 404, `"code":"404.deadletter"`},
		{"POST", "/api/sinks/a/deadletters/drop", `{}`, nil, 422, `"source":"/ids"`},
		{"POST", "/api/sinks/a/deadletters/drop", `{"ids":["x"],"all":true}`, nil, 422, "either"},
		{"POST", "/api/sinks/a/deadletters/drop", `{"ids":["x"],"hub_id":"h"}`, nil, 422, "filters"},
		{"POST", "/api/sinks/a/deadletters/drop", `{"ids":"x"}`, nil, 422, "ids must be a list, not a string"},
		{"POST", "/api/sinks/a/deadletters/drop", `{"isd":["x"]}`, nil, 422, "isd is an unknown key; did you mean ids?"},
		{"POST", "/api/sinks/a/deadletters/drop", `{"isd":["x"]}`, nil, 422, `"source":"/isd"`},
		{"POST", "/api/sinks/a/replay", `{"since":"1h"}`, nil, 422, "since is an unknown key; the keys are after, "},
		{"POST", "/api/sinks/a/deadletters/drop", `{"ids":["x","y"]}`, nil, 200, `{"data":{"changed":2,"unchanged":[]}}`},
		{
			"POST", "/api/sinks/a/deadletters/drop", `{"all":true,"limit":7}`, nil, 200,
			`{"data":{"changed":7,"unchanged":[],"next":"1-0~2-0"}}`,
		},
		{"POST", "/api/sinks/a/deadletters/drop", `{"all":true,"limit":-1}`, nil, 422, "negative"},
	} {
		a := newOpen(Options{Sinks: &fakeSinks{err: c.err}})
		w := httptest.NewRecorder()
		a.ServeHTTP(w, httptest.NewRequest(c.method, "http://127.0.0.1"+c.path, strings.NewReader(c.body)))
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.contains) {
			t.Errorf("%s %s %.40s: %d %.300s", c.method, c.path, c.body, w.Code, w.Body)
		}
	}
}

func TestAPI_DeadLetterSelection(t *testing.T) {
	f := &fakeSinks{}
	a := newOpen(Options{Sinks: f})
	get(a, "GET", "/api/sinks/a/deadletters?topics=job.*,!job.created&topics=container.error&hub_id=h&since=2026-11-21T04:00:00Z&after=1-2&limit=9",
		"")
	if f.sel.Hub != "h" || strings.Join(f.sel.Topics, " ") != "job.* !job.created container.error" || f.sel.After != "1-2" || f.sel.Limit != 9 ||
		!f.sel.Since.Equal(time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)) {
		t.Errorf("%+v", f.sel)
	}
	for path, nearest := range map[string]string{
		"/api/sinks/a/deadletters?topics=job.creatd": "job.created", "/api/events?topics=container.eror": "container.error",
		"/api/deliveries?topics=job.creatd": "job.created",
	} {
		if w := get(a, "GET", path, ""); w.Code != 422 || !strings.Contains(w.Body.String(), `"nearest":"`+nearest+`"`) {
			t.Errorf("%s: got %d %s, want 422 with the nearest topic", path, w.Code, w.Body)
		}
	}
	get(a, "GET", "/api/sinks/a/deadletters?since=24h", "")
	if age := time.Since(f.sel.Since); age < 24*time.Hour || age > 25*time.Hour {
		t.Errorf("got since %v", f.sel.Since)
	}
}

// fakeAuditLog records the filter.
type fakeAuditLog struct{ asked audit.Filter }

func (f *fakeAuditLog) Search(_ context.Context, filter audit.Filter) ([]audit.Entry, string, error) {
	f.asked = filter
	return nil, "", nil
}

func TestAPI_Audit(t *testing.T) {
	for action, want := range map[string]struct {
		status   int
		contains string
	}{
		"":                {200, `{"data":[],"next":""}`},
		"sinks.pause":     {200, `{"data":[],"next":""}`},
		"sinks":           {200, `{"data":[],"next":""}`},
		"token.revoke":    {200, `{"data":[],"next":""}`},
		"quarantine.show": {200, `{"data":[],"next":""}`}, // recorded if it is denied
		"sinks.pase":      {422, "did you mean sinks.pause?"},
		"sinks.list":      {422, "there is no action"}, // reads are not recorded
		"sink":            {422, "did you mean sinks?"},
		"xyzzy":           {422, "; the actions start with accounts, admin, authenticate, "},
	} {
		f := &fakeAuditLog{}
		w := get(newOpen(Options{AuditLog: f}), "GET", "/api/audit?action="+action, "")
		if w.Code != want.status || !strings.Contains(w.Body.String(), want.contains) {
			t.Errorf("%q: got %d %s, want %d %s", action, w.Code, w.Body, want.status, want.contains)
		}
		if w.Code == 200 && (f.asked.Action != action || f.asked.Limit != defaultAuditEntries) {
			t.Errorf("%q: got filter %+v", action, f.asked)
		}
	}
}
