package source_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/backbone"
	"github.com/hubrelay/hubrelay/relay/backbone/redistest"
	"github.com/hubrelay/hubrelay/relay/ingest"
	"github.com/hubrelay/hubrelay/relay/source"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

const patience = 30 * time.Second

// upstream is a double of a platform: it knows spec.md and what the test makes it do, nothing of cursors.
type upstream struct {
	*httptest.Server
	// refuse answers a request for a token where it returns true.
	refuse func(w http.ResponseWriter, r *http.Request) bool
	// stream is called with each connection and its number, from 1, and ends it by returning.
	stream func(n int, ws *websocket.Conn, query map[string][]string)
	opened atomic.Int64
	asked  atomic.Int64
}

func startUpstream(t *testing.T, stream func(n int, ws *websocket.Conn, query map[string][]string)) *upstream {
	t.Helper()
	u := &upstream{stream: stream}
	var streams sync.WaitGroup
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !websocket.IsWebSocketUpgrade(r) {
			u.asked.Add(1)
			if u.refuse == nil || !u.refuse(w, r) {
				_, _ = fmt.Fprint(w, `{"data":{"token":"t"}}`)
			}
			return
		}
		ws, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
		if err != nil {
			return
		}
		streams.Add(1)
		defer streams.Done()
		defer func() { _ = ws.Close() }()
		u.stream(int(u.opened.Add(1)), ws, r.URL.Query())
	}))
	t.Cleanup(func() {
		u.CloseClientConnections()
		u.Close()
		streams.Wait()
	})
	return u
}

func send(ws *websocket.Conn, texts ...string) {
	for _, text := range texts {
		_ = ws.WriteMessage(websocket.TextMessage, []byte(text))
	}
}

// hold keeps the connection until the client goes.
func hold(ws *websocket.Conn) {
	for {
		if _, _, err := ws.ReadMessage(); err != nil {
			return
		}
	}
}

func event(hub string, n int, more string) string {
	return fmt.Sprintf(`{"topic":"job.created","object":{"id":"%d"},"context":{"hub_id":%q,"account_id":"a"}%s}`, n, hub, more)
}

func cursor(c string) string { return fmt.Sprintf(`,"cursor":%q`, c) }

// held is a lease that nobody contests.
type held struct{}

func (held) Run(ctx context.Context, fn func(context.Context) error) error {
	for ctx.Err() == nil {
		if err := fn(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

type store struct{ *backbone.Backbone }

func (s store) OpenSource(ctx context.Context, name, hub string) (source.Place, backbone.SourceFigures, error) {
	return s.Backbone.OpenSource(ctx, name, hub)
}

// reader is a source under test and what it has stored.
type reader struct {
	t     *testing.T
	redis *redistest.Server
	b     *backbone.Backbone
	opt   source.Options
	log   *lines
	gaps  chan string
	stop  context.CancelFunc
	done  chan struct{}
}

// lines is what was logged.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newReader(t *testing.T, url string, change func(o *source.Options)) *reader {
	t.Helper()
	s := redistest.Start(t)
	b, err := backbone.Open(t.Context(), backbone.Options{URL: s.URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	catalog, err := relay.NewCatalog(nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{t: t, redis: s, b: b, log: &lines{}, gaps: make(chan string, 100)}
	r.opt = source.Options{
		Name: "up", URL: url, Key: func() (string, error) { return "secret", nil }, Instance: "me", Node: "node-0",
		HTTP: func() (*http.Client, error) {
			return &http.Client{Transport: &http.Transport{}}, nil
		},
		Decoder: ingest.NewDecoder(catalog), Store: store{b}, Lease: held{}, Log: slog.New(slog.NewTextHandler(r.log, nil)),
		Gap: func(_ context.Context, id, why string) error { r.gaps <- id + " " + why; return nil },
	}
	if change != nil {
		change(&r.opt)
	}
	r.start()
	t.Cleanup(r.end)
	return r
}

func (r *reader) start() {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	r.stop, r.done = stop, done
	go func() {
		defer close(done)
		_ = source.New(r.opt).Run(ctx)
	}()
}

func (r *reader) end() {
	r.stop()
	select {
	case <-r.done: // closed
	case <-time.After(patience):
		r.t.Error("the source did not end")
	}
}

func (r *reader) eventually(what string, probe func() error) {
	r.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := probe()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("waited for %s: %v\n%s", what, err, r.log)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// has waits until the log of the relay has these object ids, and nothing else.
func (r *reader) has(ids string) {
	r.t.Helper()
	r.eventually("the log to have "+ids, func() error {
		ns, err := r.b.Range(context.Background(), 0, "", 1000)
		if err != nil {
			return err
		}
		var got []string
		for _, n := range ns {
			e, err := n.Envelope()
			if err != nil {
				return err
			}
			got = append(got, e.Object.ID)
		}
		if strings.Join(got, " ") != ids {
			return fmt.Errorf("it has %q", got)
		}
		return nil
	})
}

func (r *reader) figures() backbone.SourceFigures {
	r.t.Helper()
	f, err := r.b.SourceFigures(context.Background(), "up", r.opt.Hub)
	if err != nil {
		r.t.Fatal(err)
	}
	return f
}

func (r *reader) quarantined() (reasons []string) {
	r.t.Helper()
	entries, err := r.b.Commands().XRange(context.Background(), r.b.Keys().Quarantine(), "-", "+").Result()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		reasons = append(reasons, fmt.Sprint(e.Values["reason"]))
	}
	return reasons
}

func (r *reader) status(part string) {
	r.t.Helper()
	r.eventually("the status to say "+part, func() error {
		text, err := r.b.SourceStatus(context.Background(), "up")
		if err == nil && !strings.Contains(string(text), part) {
			err = fmt.Errorf("it is %s", text)
		}
		return err
	})
}

// A platform that speaks the specification alone is read live: said once, and each return counted as a gap, over restarts
// too. Nobody is told of it as of something that happened.
func TestUpstreamWithoutCursors(t *testing.T) {
	t.Parallel()
	u := startUpstream(t, func(n int, ws *websocket.Conn, _ map[string][]string) {
		send(ws, event("h", n, ""))
		if n >= 3 {
			hold(ws)
		}
	})
	r := newReader(t, u.URL, nil)
	r.has("1 2 3")
	r.eventually("two gaps", func() error {
		if f := r.figures(); f.Gaps != 2 || f.Cursor != "" || f.Received != 3 {
			return fmt.Errorf("%+v", f)
		}
		return nil
	})
	r.end()
	r.start()
	r.has("1 2 3 4")
	if f := r.figures(); f.Gaps != 3 {
		t.Errorf("%+v", f)
	}
	if n := strings.Count(r.log.String(), "knows no cursors"); n != 2 { // each turn
		t.Errorf("said %d times:\n%s", n, r.log)
	}
	if len(r.gaps) != 0 {
		t.Errorf("somebody was told: %s", <-r.gaps)
	}
}

// What is no good goes to the quarantine with its reason, whatever it is, and the rest arrives in order.
func TestUpstreamSendsGarbage(t *testing.T) {
	t.Parallel()
	u := startUpstream(t, func(n int, ws *websocket.Conn, _ map[string][]string) {
		if n > 1 {
			hold(ws)
			return
		}
		send(ws, event("h", 1, ""), "{", `[]`, `"x"`, "", `{"topic":"no.such.topic","context":{"hub_id":"h"}}`)
		_ = ws.WriteMessage(websocket.BinaryMessage, []byte{1, 2, 3})
		send(ws, event("other", 9, ""), `{"topic":"hubrelay.sink.disabled","context":{"hub_id":"h"}}`, event("h", 2, ""))
		send(ws, event("h", 9, `,"x":"`+strings.Repeat("x", 300<<10)+`"`))
		send(ws, strings.Repeat("y", 50<<20), event("h", 3, ""))
		hold(ws)
	})
	r := newReader(t, u.URL, func(o *source.Options) { o.Hub = "h" })
	r.has("1 2 3")
	reasons := strings.Join(r.quarantined(), "\n")
	for _, part := range []string{
		"unexpected end", "no topic", "binary", `"no.such.topic"`, `"other", but the source reads the hub "h"`, "hubrelay.sink.disabled",
		"413.too-large", "the message has 52428800 bytes",
	} {
		if !strings.Contains(reasons, part) {
			t.Errorf("%q is missing in\n%s", part, reasons)
		}
	}
	if f := r.figures(); f.Quarantined != 10 || f.Received != 3 {
		t.Errorf("%+v\n%s", f, reasons)
	}
	if n := strings.Count(r.log.String(), "in the quarantine"); n != 1 {
		t.Errorf("said %d times", n)
	}
	if u.opened.Load() != 1 {
		t.Error("the connection did not last")
	}
}

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
	r.has("1 2")
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
	r.eventually("the gap to be counted", func() error {
		if f := r.figures(); f.Gaps != 2 {
			return fmt.Errorf("%+v", f)
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(after, " "); got != "now c5 now" {
		t.Errorf("asked for what is behind %s", got)
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

// What an operator has to mend is said in the status and seldom in the log, and asked again; another key is tried at once.
func TestUpstreamRefuses(t *testing.T) {
	t.Parallel()
	u := startUpstream(t, func(_ int, ws *websocket.Conn, _ map[string][]string) {
		send(ws, event("h", 1, ""))
		hold(ws)
	})
	u.refuse = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") == "Bearer hunter2-right" {
			return false
		}
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = fmt.Fprint(w, `{"error":{"status":401,"code":"401.auth-invalid","title":"T","detail":"the key is wrong"},"data":null}`)
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
	r.status(`"refused"`)
	r.status("401.auth-invalid: the key is wrong")
	key.Store(nil)
	r.status("401.auth-invalid")
	key.Store(&right)
	r.has("1")
	r.status(`"connected"`)
	if n := u.asked.Load(); n > 5 {
		t.Errorf("asked %d times", n)
	}
	if n := strings.Count(r.log.String(), "until somebody mends this"); n != 1 {
		t.Errorf("said %d times:\n%s", n, r.log)
	}
	if text := r.log.String(); strings.Contains(text, "hunter2") {
		t.Errorf("the log shows the key:\n%s", text)
	}
}

// An upstream that is away, too busy or hangs up is tried again and again, and the log stays short.
func TestUpstreamComesAndGoes(t *testing.T) {
	t.Parallel()
	u := startUpstream(t, func(n int, ws *websocket.Conn, _ map[string][]string) {
		if n < 4 {
			code := map[int]int{1: 1008, 2: 1012, 3: 1013}[n]
			_ = ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, "go"), time.Now().Add(time.Second))
			return
		}
		send(ws, event("h", 1, cursor("c1")))
		hold(ws)
	})
	var refusals atomic.Int64
	u.refuse = func(w http.ResponseWriter, _ *http.Request) bool {
		n := refusals.Add(1)
		if n > 2 {
			return false
		}
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(map[int64]int{1: 429, 2: 503}[n])
		return true
	}
	began := time.Now()
	r := newReader(t, u.URL, nil)
	r.status(`"waiting"`)
	r.has("1")
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("the upstream asked for two seconds of peace and got %s", took)
	}
	for _, part := range []string{"429", "503", "1008", "1012", "1013"} {
		if !strings.Contains(r.log.String(), part) {
			t.Errorf("no word of %s in\n%s", part, r.log)
		}
	}
}

// While Redis is away no more is read than a few MiB, and nothing is lost or doubled.
func TestRedisIsAway(t *testing.T) {
	t.Parallel()
	const count = 200
	var sent atomic.Int64
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
			if n == 20 {
				time.Sleep(300 * time.Millisecond)
			}
		}
		hold(ws)
	})
	r := newReader(t, u.URL, nil)
	r.eventually("a beginning", func() error {
		if sent.Load() < 10 {
			return errors.New("nothing came")
		}
		return nil
	})
	r.redis.Signal(19) // SIGSTOP
	time.Sleep(3 * time.Second)
	// What the source may hold, and the sockets of both sides.
	if n := sent.Load(); n > 20+(8+24)<<20/(200<<10) {
		t.Errorf("%d were read while nothing could be stored", n)
	}
	r.redis.Signal(18) // SIGCONT
	var ids []string
	for n := 1; n <= count; n++ {
		ids = append(ids, fmt.Sprint(n))
	}
	r.has(strings.Join(ids, " "))
	if f := r.figures(); f.Received != count || f.Gaps != 0 {
		t.Errorf("%+v", f)
	}
}

// An upstream that is this relay itself is refused, and what has come through this relay before is left out.
func TestCircle(t *testing.T) {
	t.Parallel()
	u := startUpstream(t, func(_ int, ws *websocket.Conn, _ map[string][]string) {
		send(ws, event("h", 1, `,"hubrelay_via":["me"]`), event("h", 2, `,"hubrelay_via":["another"]`), event("h", 3, ""))
		hold(ws)
	})
	name := "me"
	u.refuse = func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set(source.InstanceHeader, name)
		return false
	}
	r := newReader(t, u.URL, nil)
	r.status("this relay itself")
	if u.opened.Load() != 0 {
		t.Error("it connected to itself")
	}
	r.end()
	name = "upstream"
	r.start()
	r.has("2 3")
	if f := r.figures(); f.Returned != 1 {
		t.Errorf("%+v", f)
	}
	ns, err := r.b.Range(context.Background(), 0, "", 10)
	if err != nil {
		t.Fatal(err)
	}
	for i, end := range []string{`"hubrelay_via":["another","upstream"]}`, `"hubrelay_via":["upstream"]}`} {
		if !strings.HasSuffix(string(ns[i].Data), end) {
			t.Errorf("%s does not end with %s", ns[i].Data, end)
		}
	}
}
