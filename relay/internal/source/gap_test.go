package source_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/source"
)

// A resync message and an unknown cursor are gaps that are reported to operators. Later notifications are stored.
func TestSource_ReportsGaps(t *testing.T) {
	t.Parallel()
	u := startUpstream(t, func(n int, ws *websocket.Conn, _ map[string][]string) {
		switch n {
		case 1:
			send(ws, `{"topic":"hubrelay.cursor","context":{"hub_id":"h"},"cursor":"c0"}`, event("h", 1, cursor("c1")),
				`{"topic":"hubrelay.resync","object":{"error":"it was trimmed"},"context":{"hub_id":"h"},`+
					`"cursor":"c5"}`)
		case 2:
			send(ws, event("h", 2, cursor("c6")))
			waitForClose(ws)
		default:
			waitForClose(ws)
		}
	})
	r := newReader(t, u.URL, nil)
	r.expectLog("1 ~ 2")
	if reported := <-r.gaps; !strings.Contains(reported, "it was trimmed") || len(reported) < 25 ||
		reported[24] != ' ' {
		t.Errorf("got reports %q", reported)
	}
	if f := r.figures(); f.Gaps != 1 || f.Cursor != "c6" {
		t.Errorf("%+v", f)
	}
	r.stop()
	u.Config.Handler = rejectCursors(u.Config.Handler)
	r.start()
	if reported := <-r.gaps; !strings.Contains(reported, "rejects its own cursor") {
		t.Errorf("got reports %q", reported)
	}
	r.status(`"connected"`)
	testkit.Eventually(t, "the gap to be counted", func() error {
		if f := r.figures(); f.Gaps != 2 {
			return fmt.Errorf("%+v", f)
		}
		return nil
	})
	r.expectLog("1 ~ 2 ~") // for clients of the stream
	if got := u.requestedCursors(); got != "now c5 now" {
		t.Errorf("got cursor %s", got)
	}
}

// An upstream may stop sending cursors. An old cursor must not hide what is lost then.
func TestSource_CountsGapsWhenCursorsEnd(t *testing.T) {
	t.Parallel()
	u := startUpstream(t, func(n int, ws *websocket.Conn, _ map[string][]string) {
		switch n {
		case 1:
			send(ws, event("h", 1, cursor("c1")), event("h", 2, ""))
		case 2:
			send(ws, event("h", 3, ""))
			waitForClose(ws)
		default:
			waitForClose(ws)
		}
	})
	r := newReader(t, u.URL, nil)
	r.expectLog("1 2 ~ 3")
	if f := r.figures(); f.Gaps != 1 || f.Cursor != "" {
		t.Errorf("got %+v, want one gap and no cursor", f)
	}
	r.stop()
	r.start()
	r.expectLog("1 2 ~ 3 ~")
	if got := u.requestedCursors(); got != "now now now" {
		t.Errorf("got cursors %s", got)
	}
}

// An upstream that ignores the cursor of the request, and sends none, has not resumed.
func TestSource_CountsGapIfCursorIsIgnored(t *testing.T) {
	t.Parallel()
	u := startUpstream(t, func(n int, ws *websocket.Conn, _ map[string][]string) {
		if n == 1 {
			send(ws, event("h", 1, cursor("c1")))
			return
		}
		send(ws, event("h", 2, ""), event("h", 3, ""))
		waitForClose(ws)
	})
	r := newReader(t, u.URL, nil)
	r.expectLog("1 ~ 2 3")
	if f := r.figures(); f.Gaps != 1 || f.Cursor != "" {
		t.Errorf("got %+v, want one gap and no cursor", f)
	}
}

// An upstream can send any number of gaps. All are counted, but few are reported and lead to a resync of clients.
func TestSource_LimitsGaps(t *testing.T) {
	t.Parallel()
	const gaps = 200
	u := startUpstream(t, func(_ int, ws *websocket.Conn, _ map[string][]string) {
		for i := range gaps {
			send(ws, fmt.Sprintf(`{"topic":"hubrelay.resync","object":{"error":"trimmed"},"context":{"hub_id":"h"},"cursor":"c%d",`+
				`"hubrelay_via":["near","far-%d",%q]}`, i, i%2, strings.Repeat("x", 30<<10)))
		}
		waitForClose(ws)
	})
	var reports atomic.Int64
	r := newReader(t, u.URL, func(o *source.Options) {
		o.ReportGap = func(context.Context, string, string) error {
			reports.Add(1)
			return nil
		}
	})
	testkit.WaitForValue(t, "the gaps to be counted", gaps, func() int { return int(r.figures().Gaps) })
	r.stop()
	if n := reports.Load(); n < 1 || n > 15 {
		t.Errorf("got %d reports, want at most 10 and a few more", n)
	}
	if n := strings.Count(r.log.String(), "events of the upstream are missing"); n > 15 {
		t.Errorf("got %d lines of the log, want at most 10 and a few more", n)
	}
	r.expectLog(strings.TrimSpace(strings.Repeat(" ~", int(reports.Load()))))
	list, err := eventlog.New(r.b, r.b.Keys(), eventlog.Options{}).Range(t.Context(), 0, "", 100)
	if err != nil {
		t.Fatal(err)
	}
	// The last one reports gaps of both paths, so neither of the far relays may ignore it.
	last := string(list[len(list)-1].Data)
	if len(last) > 1<<10 || !strings.Contains(last, "near") || strings.Contains(last, "far-") {
		t.Errorf("got a resync of %d bytes, want a short one with the common path of relays: %.300s", len(last), last)
	}
}

// The gap of an unknown cursor is stored after the upstream is connected again, because clients that refetch their
// state earlier would miss what follows.
func TestSource_ReportsGapAfterReconnect(t *testing.T) {
	t.Parallel()
	u := startUpstream(t, func(n int, ws *websocket.Conn, _ map[string][]string) {
		send(ws, fmt.Sprintf(`{"topic":"hubrelay.cursor","context":{"hub_id":"h"},"cursor":"c%d"}`, n),
			event("h", n, cursor(fmt.Sprint("d", n))))
		if n > 1 {
			waitForClose(ws)
		}
	})
	var unreachable atomic.Bool // unreachable after a rejected cursor, for one request
	u.reject = func(w http.ResponseWriter, _ *http.Request) bool {
		if !unreachable.Swap(false) {
			return false
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	next := rejectCursors(u.Config.Handler)
	u.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if after := r.URL.Query().Get("after"); after != "" && after != "now" {
			unreachable.Store(true)
		}
		next.ServeHTTP(w, r)
	})
	r := newReader(t, u.URL, func(o *source.Options) {
		o.ReportGap = func(_ context.Context, _, why string) error {
			if unreachable.Load() {
				t.Errorf("reported before the next connection: %s", why)
			}
			return nil
		}
	})
	r.expectLog("1 ~ 2")
	r.stop()
	r.start()
	r.expectLog("1 ~ 2 ~ 3")
	if f := r.figures(); f.Gaps != 2 || f.Cursor != "d3" {
		t.Errorf("%+v", f)
	}
}

// A crash between a rejected cursor and the next connection does not lose the gap, because the rejected cursor
// stays stored until then.
func TestSource_GapSurvivesCrash(t *testing.T) {
	t.Parallel()
	u := startUpstream(t, func(n int, ws *websocket.Conn, _ map[string][]string) {
		send(ws, event("h", n, cursor(fmt.Sprint("c", n))))
		waitForClose(ws)
	})
	r := newReader(t, u.URL, nil)
	r.expectLog("1")
	r.stop()
	var refused, repaired atomic.Bool
	next := rejectCursors(u.Config.Handler)
	u.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r)
		refused.CompareAndSwap(false, r.URL.Query().Get("after") != "")
	})
	u.reject = func(w http.ResponseWriter, _ *http.Request) bool {
		if !refused.Load() || repaired.Load() {
			return false
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	r.start()
	r.status(`"retrying"`)
	r.stop()
	if f := r.figures(); f.Gaps != 0 || f.Cursor != "c1" {
		t.Errorf("before the next connection: got %+v", f)
	}
	repaired.Store(true)
	r.start()
	r.expectLog("1 ~ 2")
	if reported := <-r.gaps; !strings.Contains(reported, "rejects its own cursor") {
		t.Errorf("got reports %q", reported)
	}
}

// An upstream, or a proxy before it, that rejects the long request after a restart costs a gap, but not the source. A
// cursor that is too short to cause the rejection stays.
func TestSource_RejectedCursorSize(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status, size int
		want         string
	}{
		"413":          {http.StatusRequestEntityTooLarge, 300, "1 ~ 2"},
		"414":          {http.StatusRequestURITooLong, 300, "1 ~ 2"},
		"431":          {http.StatusRequestHeaderFieldsTooLarge, 300, "1 ~ 2"},
		"short cursor": {http.StatusRequestHeaderFieldsTooLarge, 50, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := startUpstream(t, func(n int, ws *websocket.Conn, _ map[string][]string) {
				send(ws, event("h", n, cursor(strings.Repeat("c", test.size))))
				waitForClose(ws)
			})
			r := newReader(t, u.URL, nil)
			r.expectLog("1")
			r.stop()
			next := u.Config.Handler
			u.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if after := r.URL.Query().Get("after"); after != "" && after != "now" {
					w.WriteHeader(test.status)
					return
				}
				next.ServeHTTP(w, r)
			})
			r.start()
			if test.want == "1" {
				r.status(`"rejected"`)
			} else if reported := <-r.gaps; !strings.Contains(reported, fmt.Sprint("rejects its own cursor: open the stream: the "+
				"server responded with ", test.status)) {
				t.Errorf("got report %q", reported)
			}
			r.expectLog(test.want)
		})
	}
}

// rejectCursors rejects every cursor, like an upstream that was set up again.
func rejectCursors(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if after := r.URL.Query().Get("after"); after != "" && after != "now" {
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = fmt.Fprint(
				w,
				`{"error":{"status":422,"code":"422.invalid-argument","title":"T","detail":"no cursor of this `+
					`relay","extra":{"parameter":"after"}},"data":null}`,
			)
			return
		}
		next.ServeHTTP(w, r)
	})
}
