package source_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/source"
)

// A platform without cursors is read live. This is logged once, and each reconnect is counted as a gap, also after
// restarts of the source.
func TestSource_UpstreamWithoutCursors(t *testing.T) {
	t.Parallel()
	u := startUpstream(t, func(n int, ws *websocket.Conn, _ map[string][]string) {
		send(ws, event("h", n, ""))
		if n >= 3 {
			waitForClose(ws)
		}
	})
	r := newReader(t, u.URL, nil)
	r.expectLog("1 ~ 2 ~ 3")
	testkit.Eventually(t, "two gaps", func() error {
		if f := r.figures(); f.Gaps != 2 || f.Cursor != "" || f.Stored != 3 {
			return fmt.Errorf("%+v", f)
		}
		return nil
	})
	r.stop()
	r.start()
	r.expectLog("1 ~ 2 ~ 3 ~ 4")
	if f := r.figures(); f.Gaps != 3 {
		t.Errorf("%+v", f)
	}
	if n := strings.Count(r.log.String(), "sends no cursors"); n != 2 { // once per session
		t.Errorf("logged %d times:\n%s", n, r.log)
	}
	if len(r.gaps) != 0 {
		t.Errorf("unexpected report: %s", <-r.gaps)
	}
}

// A report of a gap lists the relays that it has passed, and stops at the relay that reported it first.
func TestSource_GapReportsDoNotLoop(t *testing.T) {
	t.Parallel()
	resync := func(via, c string) string {
		return `{"topic":"hubrelay.resync","object":{"error":"gone"},"context":{"hub_id":"h"},"hubrelay_via":[` + via +
			`],"cursor":"` + c + `"}`
	}
	u := startUpstream(t, func(n int, ws *websocket.Conn, _ map[string][]string) {
		if n == 1 {
			send(ws, event("h", 1, cursor("c1")), resync(`"far","me"`, "c2"))
		} else {
			send(ws, event("h", 2, cursor("c3")), resync(`"far"`, "c4"), event("h", 3, cursor("c5")))
		}
		waitForClose(ws)
	})
	u.reject = func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set(relay.IDHeader, "near")
		return false
	}
	r := newReader(t, u.URL, nil)
	r.expectLog("1")
	testkit.Eventually(t, "the place behind what came back", func() error {
		if f := r.figures(); f.Cursor != "c2" || f.Gaps != 0 {
			return fmt.Errorf("%+v", f)
		}
		return nil
	})
	r.stop()
	r.start()
	r.expectLog("1 2 ~ 3")
	list, err := eventlog.New(r.b, r.b.Keys(), eventlog.Options{}).Range(t.Context(), 0, "", 10)
	if err != nil || !strings.HasSuffix(string(list[2].Data), `,"flags":null,"hubrelay_via":["far","near"]}`) ||
		strings.Contains(string(list[2].Data), "gone") {
		t.Errorf("got %v, resync entry %s", err, list[2].Data)
	}
}

// Invalid messages go to the quarantine with a reason, and the others are stored in order.
func TestSource_QuarantinesInvalidMessages(t *testing.T) {
	t.Parallel()
	u := startUpstream(t, func(n int, ws *websocket.Conn, _ map[string][]string) {
		if n > 1 {
			waitForClose(ws)
			return
		}
		send(ws, event("h", 1, ""), "{", `[]`, `"x"`, "", `{"topic":"no.such.topic","context":{"hub_id":"h"}}`)
		_ = ws.WriteMessage(websocket.BinaryMessage, []byte{1, 2, 3})
		send(ws, event("other", 9, ""), `{"topic":"hubrelay.sink.disabled","context":{"hub_id":"h"}}`,
			event("h", 2, ""))
		send(ws, event("h", 9, `,"x":"`+strings.Repeat("x", 300<<10)+`"`))
		send(ws, strings.Repeat("y", 50<<20), event("h", 3, ""))
		waitForClose(ws)
	})
	r := newReader(t, u.URL, func(o *source.Options) { o.Hub = "h" })
	r.expectLog("1 2 3")
	reasons := strings.Join(r.quarantined(), "\n")
	for _, part := range []string{
		"unexpected end", "no topic", "binary", `"no.such.topic"`, `"other", but the source reads the hub "h"`,
		"hubrelay.sink.disabled",
		"413.too-large", "the message has 52428800 bytes",
	} {
		if !strings.Contains(reasons, part) {
			t.Errorf("want %q in\n%s", part, reasons)
		}
	}
	if f := r.figures(); f.Quarantined != 10 || f.Stored != 3 {
		t.Errorf("%+v\n%s", f, reasons)
	}
	if n := strings.Count(r.log.String(), "to the quarantine"); n != 1 {
		t.Errorf("logged %d times", n)
	}
	if u.opened.Load() != 1 {
		t.Error("the connection was closed")
	}
}

// An error that an operator must fix is in the status and seldom in the log. It is retried, and a new key is tried
// immediately.
func TestSource_UpstreamRejects(t *testing.T) {
	t.Parallel()
	u := startUpstream(t, func(_ int, ws *websocket.Conn, _ map[string][]string) {
		send(ws, event("h", 1, ""))
		waitForClose(ws)
	})
	u.reject = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") == "Bearer hunter2-right" {
			return false
		}
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = fmt.Fprint(w,
			`{"error":{"status":401,"code":"401.auth-invalid","title":"T","detail":"the key is wrong"},"data":null}`)
		return true
	}
	var key atomic.Pointer[string]
	wrong, right := "hunter2-wrong", "hunter2-right"
	key.Store(&wrong)
	r := newReader(t, u.URL, func(o *source.Options) {
		o.Key = func() (string, error) {
			if k := key.Load(); k != nil {
				return *k, nil
			}
			return "", errors.New("key_file cannot be read")
		}
	})
	r.status(`"rejected"`)
	r.status("the key is wrong (401.auth-invalid)")
	key.Store(nil)
	r.status("401.auth-invalid")
	key.Store(&right)
	r.expectLog("1")
	r.status(`"connected"`)
	if n := u.asked.Load(); n > 5 {
		t.Errorf("got %d requests", n)
	}
	if n := strings.Count(r.log.String(), "upstream rejects the connection"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, r.log)
	}
	if text := r.log.String(); strings.Contains(text, "hunter2") {
		t.Errorf("the log contains the key:\n%s", text)
	}
}

// An upstream that is unreachable, overloaded or disconnects is retried, and the log stays short.
func TestSource_ReconnectsAfterFailures(t *testing.T) {
	t.Parallel()
	u := startUpstream(t, func(n int, ws *websocket.Conn, _ map[string][]string) {
		if n < 4 {
			code := map[int]int{1: 1008, 2: 1012, 3: 1013}[n]
			_ = ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, "go"),
				time.Now().Add(testkit.Patience))
			return
		}
		send(ws, event("h", 1, cursor("c1")))
		waitForClose(ws)
	})
	var refusals atomic.Int64
	u.reject = func(w http.ResponseWriter, _ *http.Request) bool {
		n := refusals.Add(1)
		if n > 2 {
			return false
		}
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(map[int64]int{1: 429, 2: 503}[n])
		return true
	}
	began := time.Now()
	r := newReader(t, u.URL, func(o *source.Options) {
		o.MinPause, o.MaxPause = 10*time.Millisecond, 100*time.Millisecond
	})
	r.status(`"retrying"`)
	r.expectLog("~ ~ ~ 1")
	if elapsed := time.Since(began); elapsed < 2*time.Second {
		t.Errorf("got a delay of %s, want at least 2s", elapsed)
	}
	for _, part := range []string{"429", "503", "1008", "1012", "1013"} {
		if !strings.Contains(r.log.String(), part) {
			t.Errorf("want %s in\n%s", part, r.log)
		}
	}
}

// While Redis is stopped, only a few MiB are read, and nothing is lost or duplicated.
func TestSource_RedisStopped(t *testing.T) {
	t.Parallel()
	const count = 200
	var sent atomic.Int64
	away := make(chan struct{})
	body := `,"x":"` + strings.Repeat("x", 200<<10) + `"`
	u := startUpstream(t, func(_ int, ws *websocket.Conn, query map[string][]string) {
		from := 0
		if after := query["after"][0]; after != "now" {
			_, _ = fmt.Sscanf(after, "c%d", &from)
		} else {
			send(ws, `{"topic":"hubrelay.cursor","context":{"hub_id":"h"},"cursor":"c0"}`)
		}
		for n := from + 1; n <= count; n++ {
			if ws.WriteMessage(websocket.TextMessage, []byte(event("h", n, body+cursor(fmt.Sprint("c", n))))) != nil {
				return
			}
			sent.Store(int64(n))
			if n == 20 { // the rest is sent while Redis is stopped
				select {
				case <-away:
				case <-t.Context().Done():
					return
				}
			}
		}
		waitForClose(ws)
	})
	r := newReader(t, u.URL, nil)
	testkit.Eventually(t, "a beginning", func() error {
		if sent.Load() < 10 {
			return errors.New("nothing came")
		}
		return nil
	})
	r.redis.Signal(19) // SIGSTOP
	close(away)
	last, changed := int64(-1), time.Now()
	testkit.Eventually(t, "the source to stop reading", func() error {
		if n := sent.Load(); n != last {
			last, changed = n, time.Now()
		}
		if time.Since(changed) < time.Second {
			return fmt.Errorf("%d messages, the last one %s ago", last, time.Since(changed))
		}
		return nil
	})
	// the limit of the source plus both socket buffers
	if n := sent.Load(); n > 20+(8+24)<<20/(200<<10) {
		t.Errorf("read %d messages while Redis was stopped", n)
	}
	r.redis.Signal(18)                                 // SIGCONT
	testkit.Eventually(t, "everything", func() error { // reading the log repeatedly would take longer than writing it
		if f := r.figures(); f.Stored < count {
			return fmt.Errorf("%+v", f)
		}
		return nil
	})
	var ids []string
	for n := 1; n <= count; n++ {
		ids = append(ids, fmt.Sprint(n))
	}
	r.expectLog(strings.Join(ids, " "))
	if f := r.figures(); f.Stored != count || f.Gaps != 0 {
		t.Errorf("%+v", f)
	}
}

// An upstream that is this relay is rejected, and notifications that have passed this relay are discarded.
func TestSource_DetectsLoops(t *testing.T) {
	t.Parallel()
	u := startUpstream(t, func(_ int, ws *websocket.Conn, _ map[string][]string) {
		send(ws, event("h", 1, `,"hubrelay_via":["me"]`), event("h", 2, `,"hubrelay_via":["another"]`),
			event("h", 3, ""))
		waitForClose(ws)
	})
	var renamed atomic.Bool
	u.reject = func(w http.ResponseWriter, _ *http.Request) bool {
		name := "me"
		if renamed.Load() {
			name = "upstream"
		}
		w.Header().Set(relay.IDHeader, name)
		return false
	}
	r := newReader(t, u.URL, nil)
	r.status("this relay itself")
	if u.opened.Load() != 0 {
		t.Error("the source connected to itself")
	}
	r.stop()
	renamed.Store(true)
	r.start()
	r.expectLog("2 3")
	if f := r.figures(); f.Returned != 1 {
		t.Errorf("%+v", f)
	}
	ns, err := eventlog.New(r.b, r.b.Keys(), eventlog.Options{}).Range(context.Background(), 0, "", 10)
	if err != nil {
		t.Fatal(err)
	}
	for i, end := range []string{`"hubrelay_via":["another","upstream"]}`, `"hubrelay_via":["upstream"]}`} {
		if !strings.HasSuffix(string(ns[i].Data), end) {
			t.Errorf("%s does not end with %s", ns[i].Data, end)
		}
	}
}
