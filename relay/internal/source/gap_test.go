package source_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/source"
)

// A resync and a cursor that the upstream does not know are gaps that operators hear of; what follows is stored.
func TestUpstreamLosesThings(t *testing.T) {
	t.Parallel()
	var after []string
	var mu sync.Mutex
	u := startUpstream(t, func(n int, ws *websocket.Conn, query map[string][]string) {
		mu.Lock()
		after = append(after, query["after"][0])
		mu.Unlock()
		switch n {
		case 1:
			send(ws, `{"topic":"hubrelay.cursor","context":{"hub_id":"h"},"cursor":"c0"}`, event("h", 1, cursor("c1")),
				`{"topic":"hubrelay.resync","object":{"error":"it was trimmed"},"context":{"hub_id":"h"},"cursor":"c5"}`)
		case 2:
			send(ws, event("h", 2, cursor("c6")))
			hold(ws)
		default:
			hold(ws)
		}
	})
	r := newReader(t, u.URL, nil)
	r.has("1 ~ 2")
	if told := <-r.gaps; !strings.Contains(told, "it was trimmed") || len(told) < 25 || told[24] != ' ' {
		t.Errorf("told %q", told)
	}
	if f := r.figures(); f.Gaps != 1 || f.Cursor != "c6" {
		t.Errorf("%+v", f)
	}
	r.end()
	u.Config.Handler = stale(u.Config.Handler)
	r.start()
	if told := <-r.gaps; !strings.Contains(told, "does not know the place") {
		t.Errorf("told %q", told)
	}
	r.status(`"connected"`)
	testkit.Eventually(t, "the gap to be counted", func() error {
		if f := r.figures(); f.Gaps != 2 {
			return fmt.Errorf("%+v", f)
		}
		return nil
	})
	r.has("1 ~ 2 ~") // for clients of the stream
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(after, " "); got != "now c5 now" {
		t.Errorf("asked for what is behind %s", got)
	}
}

// The gap of a place that is not known any more is stored once the upstream is connected again: clients who look then at how
// things are miss nothing. That holds for a place of this turn and for one of an earlier turn.
func TestGapIsToldOnceConnected(t *testing.T) {
	t.Parallel()
	u := startUpstream(t, func(n int, ws *websocket.Conn, _ map[string][]string) {
		send(ws, fmt.Sprintf(`{"topic":"hubrelay.cursor","context":{"hub_id":"h"},"cursor":"c%d"}`, n), event("h", n, cursor(fmt.Sprint("d", n))))
		if n > 1 {
			hold(ws)
		}
	})
	var away atomic.Bool // behind a refused place, for one request
	u.refuse = func(w http.ResponseWriter, _ *http.Request) bool {
		if !away.Swap(false) {
			return false
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	next := stale(u.Config.Handler)
	u.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if after := r.URL.Query().Get("after"); after != "" && after != "now" {
			away.Store(true)
		}
		next.ServeHTTP(w, r)
	})
	r := newReader(t, u.URL, func(o *source.Options) {
		o.ReportGap = func(_ context.Context, _, why string) error {
			if away.Load() {
				t.Errorf("told before anybody was connected again: %s", why)
			}
			return nil
		}
	})
	r.has("1 ~ 2")
	r.end()
	r.start()
	r.has("1 ~ 2 ~ 3")
	if f := r.figures(); f.Gaps != 2 || f.Cursor != "d3" {
		t.Errorf("%+v", f)
	}
}

// A kill between the refused place and the next connection forgets no gap: the place that was refused is kept until then.
func TestGapOutlivesAKill(t *testing.T) {
	t.Parallel()
	u := startUpstream(t, func(n int, ws *websocket.Conn, _ map[string][]string) {
		send(ws, event("h", n, cursor(fmt.Sprint("c", n))))
		hold(ws)
	})
	r := newReader(t, u.URL, nil)
	r.has("1")
	r.end()
	var refused atomic.Bool
	next := stale(u.Config.Handler)
	u.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r)
		refused.CompareAndSwap(false, r.URL.Query().Get("after") != "")
	})
	u.refuse = func(w http.ResponseWriter, _ *http.Request) bool {
		if refused.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return refused.Load()
	}
	r.start()
	r.status(`"waiting"`)
	r.end()
	if f := r.figures(); f.Gaps != 0 || f.Cursor != "c1" {
		t.Errorf("before anybody was connected again: %+v", f)
	}
	u.refuse = nil
	r.start()
	r.has("1 ~ 2")
	if told := <-r.gaps; !strings.Contains(told, "does not know the place") {
		t.Errorf("told %q", told)
	}
}

// stale refuses every cursor as an upstream does that was set up anew.
func stale(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if after := r.URL.Query().Get("after"); after != "" && after != "now" {
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = fmt.Fprint(w, `{"error":{"status":422,"code":"422.invalid-argument","title":"T","detail":"no cursor of this relay","extra":{"parameter":"after"}},"data":null}`)
			return
		}
		next.ServeHTTP(w, r)
	})
}
