package source_test

import (
	"bytes"
	"context"
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

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/inbox"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
	"github.com/hubrelay/hubrelay/relay/internal/source"
	"github.com/hubrelay/hubrelay/relay/internal/source/sourcestore"
)

func TestMain(m *testing.M) {
	testkit.RunParallel(8) // the tests mostly wait
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

const patience = 30 * time.Second

// upstream is a fake platform that implements docs/specification.md without cursors. Tests extend it.
type upstream struct {
	*httptest.Server
	// reject handles a request for a token if it returns true.
	reject func(w http.ResponseWriter, r *http.Request) bool
	// stream is called for each connection with its number, from 1. The connection ends when it returns.
	stream func(n int, ws *websocket.Conn, query map[string][]string)
	opened atomic.Int64
	asked  atomic.Int64

	mu    sync.Mutex
	after []string // of each connection
}

// requestedCursors returns the parameter after of each connection.
func (u *upstream) requestedCursors() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return strings.Join(u.after, " ")
}

func startUpstream(t *testing.T, stream func(n int, ws *websocket.Conn, query map[string][]string)) *upstream {
	t.Helper()
	u := &upstream{stream: stream}
	var streams sync.WaitGroup
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !websocket.IsWebSocketUpgrade(r) {
			u.asked.Add(1)
			if u.reject == nil || !u.reject(w, r) {
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
		u.mu.Lock()
		u.after = append(u.after, r.URL.Query().Get("after"))
		u.mu.Unlock()
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

// waitForClose keeps the connection open until the client closes it.
func waitForClose(ws *websocket.Conn) {
	for {
		if _, _, err := ws.ReadMessage(); err != nil {
			return
		}
	}
}

func event(hub string, n int, more string) string {
	return fmt.Sprintf(`{"topic":"job.created","object":{"id":"%d"},"context":{"hub_id":%q,"account_id":"a"}%s}`, n,
		hub, more)
}

func cursor(c string) string { return fmt.Sprintf(`,"cursor":%q`, c) }

// freeLease is a lease without other holders.
type freeLease struct{}

func (freeLease) Run(ctx context.Context, fn func(context.Context) error) error {
	for ctx.Err() == nil {
		if err := fn(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

type store struct{ *sourcestore.Store }

func (s store) Open(ctx context.Context, name, hub string) (source.Position, sourcestore.Stats, error) {
	return s.Store.Open(ctx, name, hub)
}

// testReader runs a source and records what it stores.
type testReader struct {
	t      *testing.T
	redis  *redistest.Server
	b      *redisconn.Conn
	opt    source.Options
	log    *logBuffer
	gaps   chan string
	cancel context.CancelFunc
	done   chan struct{}
}

// logBuffer records log lines.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newReader(t *testing.T, url string, change func(o *source.Options)) *testReader {
	t.Helper()
	s := redistest.Start(t)
	b := conntest.Open(t, s, redisconn.Options{})
	catalog, err := relay.NewCatalog(nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &testReader{t: t, redis: s, b: b, log: &logBuffer{}, gaps: make(chan string, 100)}
	r.opt = source.Options{
		Name: "up", URL: url, Key: func() (string, error) { return "secret", nil }, RelayID: "me", Node: "node-0",
		HTTP: func() (*http.Client, error) {
			return &http.Client{Transport: &http.Transport{}}, nil
		},
		Decoder: ingest.NewDecoder(catalog), Store: store{sourcestore.New(b, b.Keys())}, Lease: freeLease{},
		Log: slog.New(slog.NewTextHandler(
			r.log, nil,
		)),
		ReportGap: func(_ context.Context, id, why string) error { r.gaps <- id + " " + why; return nil },
	}
	if change != nil {
		change(&r.opt)
	}
	r.start()
	t.Cleanup(func() {
		r.stop()
		if t.Failed() {
			t.Logf("log of the source:\n%s", r.log)
		}
	})
	return r
}

func (r *testReader) start() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	r.cancel, r.done = cancel, done
	go func() {
		defer close(done)
		_ = source.New(r.opt).Run(ctx)
	}()
}

func (r *testReader) stop() {
	r.cancel()
	select {
	case <-r.done: // closed
	case <-time.After(patience):
		r.t.Error("the source did not stop")
	}
}

// readLog returns the whole log. A read of large notifications returns only a part.
func (r *testReader) readLog() (all []relay.Notification, err error) {
	for after := ""; ; after = all[len(all)-1].Cursor {
		ns, err := eventlog.New(r.b, r.b.Keys(), eventlog.Options{}).Range(context.Background(), 0, after, 1000)
		if err != nil || len(ns) == 0 {
			return all, err
		}
		all = append(all, ns...)
	}
}

// expectLog waits until the log contains exactly these object IDs. "~" is a resync entry.
func (r *testReader) expectLog(ids string) {
	r.t.Helper()
	testkit.Eventually(r.t, "the log to have "+ids, func() error {
		ns, err := r.readLog()
		if err != nil {
			return err
		}
		var got []string
		for _, n := range ns {
			if n.Topic == relay.TopicResync { // for clients of the stream
				got = append(got, "~")
				continue
			}
			e, err := n.Envelope()
			if err != nil {
				return err
			}
			got = append(got, e.Object.ID)
		}
		if strings.Join(got, " ") != ids {
			return fmt.Errorf("got log %q", got)
		}
		return nil
	})
}

func (r *testReader) figures() sourcestore.Stats {
	r.t.Helper()
	f, err := sourcestore.New(r.b, r.b.Keys()).Stats(context.Background(), "up", r.opt.Hub)
	if err != nil {
		r.t.Fatal(err)
	}
	return f
}

func (r *testReader) quarantined() (reasons []string) {
	r.t.Helper()
	entries, err := r.b.Commands().XRange(context.Background(), inbox.QuarantineKey(r.b.Keys()), "-", "+").Result()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		reasons = append(reasons, fmt.Sprint(e.Values["reason"]))
	}
	return reasons
}

func (r *testReader) status(part string) {
	r.t.Helper()
	testkit.Eventually(r.t, "the status to say "+part, func() error {
		text, err := sourcestore.New(r.b, r.b.Keys()).Status(context.Background(), "up")
		if err == nil && !strings.Contains(string(text), part) {
			err = fmt.Errorf("got status %s", text)
		}
		return err
	})
}
