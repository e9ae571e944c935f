package publicapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/clients"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
)

func TestMain(m *testing.M) {
	testkit.RunParallel(8) // the tests wait most of the time
	goleak.VerifyTestMain(m)
}

// fixture is an API on a real socket with a real Redis. Its publisher and hub only record their calls.
type fixture struct {
	t       *testing.T
	addr    string
	api     *API
	redis   *redistest.Server
	ring    *auth.Keyring
	client  *http.Client
	log     *testkit.Buffer
	pub     *recordingPublisher
	streams *recordingStreams
	refused *refusals
}

// testStreamTTL is longer than any other time of these tests.
const testStreamTTL = 24 * time.Hour

func newFixture(t *testing.T, change func(*Options), changeServer func(*httpserver.Options)) *fixture {
	t.Helper()
	f := &fixture{
		t:       t,
		redis:   redistest.Start(t),
		log:     &testkit.Buffer{},
		pub:     &recordingPublisher{},
		streams: &recordingStreams{},
		refused: &refusals{},
	}
	store := redis.NewClient(
		&redis.Options{Network: "unix", Addr: f.redis.Socket, MaxRetries: -1, DisableIdentity: true},
	)
	t.Cleanup(func() { _ = store.Close() })
	f.ring = keyring(t)
	catalog, err := relay.NewCatalog(nil)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Authenticator: auth.NewAuthenticator(auth.AuthenticatorOptions{Keys: f.ring}), Catalog: catalog,
		Publisher: f.pub, Streams: f.streams, Observer: f.refused,
		Tokens: auth.NewTokenStore(auth.TokenOptions{
			Client: store, Key: func(h string) string { return "t:" + h }, Changes: "changes",
			TTL: time.Minute, StreamTTL: testStreamTTL,
		}),
		Log: slog.New(slog.NewTextHandler(f.log, nil)),
	}
	if change != nil {
		change(&o)
	}
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	f.api = a
	so := httpserver.Options{Name: "server", Addr: "127.0.0.1:0", Handler: a, Log: o.Log}
	if changeServer != nil {
		changeServer(&so)
	}
	f.addr = serve(t, so)
	transport := &http.Transport{}
	f.client = &http.Client{Transport: transport}
	t.Cleanup(transport.CloseIdleConnections)
	return f
}

func keyring(t testing.TB) *auth.Keyring {
	t.Helper()
	both := []string{auth.CapabilityPublish, auth.CapabilityMigrate}
	ring, err := auth.NewKeyring([]auth.Key{
		{Name: "ops", AccountID: "acme", Hash: apikey.HashOf("ops"), Hubs: []string{"*"}, Capabilities: both},
		{Name: "one", AccountID: "acme", Hash: apikey.HashOf("one"), Hubs: []string{"h1"}, Capabilities: both},
		{Name: "other", AccountID: "other", Hash: apikey.HashOf("other"), Hubs: []string{"*"}},
		{Name: "elsewhere", AccountID: "elsewhere", Hash: apikey.HashOf("elsewhere"), Hubs: []string{"*"}, Capabilities: both},
		{Name: "platform", AccountID: "*", Hash: apikey.HashOf("platform"), Hubs: []string{"*"}, Capabilities: both},
		{
			Name:      "old",
			AccountID: "acme",
			Hash:      apikey.HashOf("old"),
			Hubs:      []string{"*"},
			Expires:   time.Now().Add(-time.Hour),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

func serve(t testing.TB, o httpserver.Options) (addr string) {
	t.Helper()
	s, err := httpserver.Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s.Addr().String()
}

// do sends one request. headers are pairs of names and values, and may include Host.
func (f *fixture) do(method, path, body string, headers ...string) response {
	f.t.Helper()
	var reader io.Reader
	if body != "" {
		reader = bytes.NewReader([]byte(body))
	}
	req, err := http.NewRequestWithContext(f.t.Context(), method, "http://"+f.addr+path, reader)
	if err != nil {
		f.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		} else {
			req.Header.Add(headers[i], headers[i+1])
		}
	}
	res, err := f.client.Do(req)
	if err != nil {
		f.t.Fatalf("%s %s: %v", method, path, err)
	}
	return readResponse(f.t, res)
}

// token requests a token with the key "ops".
func (f *fixture) token(headers ...string) string {
	f.t.Helper()
	a := f.do("GET", pathNotifications, "", append([]string{"Authorization", "Bearer ops"}, headers...)...)
	var out struct {
		Data struct{ Token string }
	}
	if err := json.Unmarshal(a.body, &out); err != nil || a.status != 200 {
		f.t.Fatalf("token: %d %s", a.status, a.body)
	}
	return out.Data.Token
}

type response struct {
	status int
	header http.Header
	body   []byte
	proto  string
}

func readResponse(t *testing.T, res *http.Response) response {
	t.Helper()
	defer func() { _ = res.Body.Close() }()
	a := response{status: res.StatusCode, header: res.Header, proto: res.Proto}
	if res.StatusCode == http.StatusSwitchingProtocols {
		return a
	}
	var err error
	if a.body, err = io.ReadAll(res.Body); err != nil {
		t.Fatal(err)
	}
	return a
}

// envelope checks that the response is a valid error envelope, and returns its code, source and extra.
func (r response) envelope(t *testing.T) (code, source string, extra map[string]any) {
	t.Helper()
	var e struct {
		Error struct {
			Status              int
			Code, Title, Detail string
			Source              string
			Extra               map[string]any
		}
		Data *json.RawMessage
	}
	if err := json.Unmarshal(r.body, &e); err != nil {
		t.Fatalf("%d %q: %v", r.status, r.body, err)
	}
	if e.Error.Status != r.status || e.Error.Title == "" || e.Error.Detail == "" ||
		!bytes.Contains(r.body, []byte(`"data":null`)) {
		t.Errorf("%d: not the envelope: %s", r.status, r.body)
	}
	if got := r.header.Get("Content-Type"); got != "application/json; charset=utf-8" {
		t.Errorf("content type %q", got)
	}
	return e.Error.Code, e.Error.Source, e.Error.Extra
}

type recordingPublisher struct {
	mu   sync.Mutex
	got  []ingest.Publication
	body string
	err  error
	boom bool
}

func (p *recordingPublisher) Publish(_ context.Context, pub ingest.Publication) ([]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.boom {
		panic("boom")
	}
	p.body = string(pub.Body)
	pub.Body = nil
	p.got = append(p.got, pub)
	return []string{"0123456789abcdef01234567", "0123456789abcdef01234568"}, p.err
}

type recordingStreams struct {
	mu  sync.Mutex
	got []clients.Subscription
	err *relay.Error
}

// Serve responds with 101 and closes the connection.
func (s *recordingStreams) ServeWebSocket(w http.ResponseWriter, r *http.Request, sub clients.Subscription) *relay.Error {
	if s.err != nil {
		return s.err
	}
	if err := sub.Admit(r.Context(), func() {}); err != nil {
		return err
	}
	s.mu.Lock()
	s.got = append(s.got, sub)
	s.mu.Unlock()
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return relay.NewError(relay.CodeUnknown, err.Error())
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	return nil
}

// ServeEvents responds with one comment.
func (s *recordingStreams) ServeEvents(w http.ResponseWriter, r *http.Request, sub clients.Subscription) *relay.Error {
	if sub.Admit != nil {
		if err := sub.Admit(r.Context(), func() {}); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.got = append(s.got, sub)
	s.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, ":\n\n")
	if sub.OnGone != nil {
		sub.OnGone()
	}
	return nil
}

type refusals struct {
	mu    sync.Mutex
	codes []relay.Code
}

func (r *refusals) RequestRejected(c relay.Code) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.codes = append(r.codes, c)
}

// raw sends text on a new connection and reads one response.
func (f *fixture) raw(text string) response {
	f.t.Helper()
	conn, err := net.Dial("tcp", f.addr)
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, text); err != nil {
		f.t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(testkit.Patience))
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		f.t.Fatalf("no response to %.60q: %v", text, err)
	}
	return readResponse(f.t, res)
}
