package clients

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
)

func TestMain(m *testing.M) {
	if address := benchClients(); address != "" {
		readAsClients(address)
		return
	}
	goleak.VerifyTestMain(m)
}

// patience bounds every wait of these tests; nothing waits that long unless it fails.
const patience = 60 * time.Second

// counter is an Observer that keeps how each connection ended.
type counter struct {
	connected chan struct{}
	ended     chan CloseReason
	away      chan Limit
	counts    *observedCounts
}

func newCounter() *counter {
	return &counter{
		connected: make(chan struct{}, 1000),
		ended:     make(chan CloseReason, 1000),
		away:      make(chan Limit, 1000),
		counts:    newObservedCounts(),
	}
}

func (c *counter) Queued(int, int)  {}
func (c *counter) Rejected(l Limit) { c.away <- l }

func (c *counter) wantEnding(t *testing.T, want CloseReason) {
	t.Helper()
	select {
	case got := <-c.ended:
		if got != want {
			t.Errorf("the connection ended with %q, want %q", got, want)
		}
	case <-time.After(patience):
		t.Errorf("the connection did not end, want %q", want)
	}
}

// node is a hub with a real HTTP server. Query parameters hub, account and topics choose the subscription.
type node struct {
	*Server
	*counter
	server *httptest.Server
	// edit changes the subscription of requests to come.
	edit func(*Subscription)
}

// testCursors are the cursors of a hub without a CursorKey.
var testCursors = streamid.NewCursors(streamid.CursorKey{})

func startNode(t testing.TB, o Options, edit func(*Subscription)) *node {
	return startNodeOver(t, o, edit, (*httptest.Server).Start)
}

func startNodeOver(t testing.TB, o Options, edit func(*Subscription), start func(*httptest.Server)) *node {
	t.Helper()
	n := &node{counter: newCounter(), edit: edit}
	o.Observer = n.counter
	o.PingInterval = cmp.Or(o.PingInterval, time.Hour) // no ping between frames that a test reads one by one
	n.Server = New(o)
	n.server = httptest.NewUnstartedServer(http.HandlerFunc(n.serve))
	start(n.server)
	ctx, cancel := context.WithCancel(t.Context())
	running := make(chan error, 1)
	go func() { running <- n.Run(ctx) }()
	t.Cleanup(func() {
		stop, end := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer end()
		_ = n.Close(stop)
		n.server.Close()
		cancel()
		if err := <-running; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
	return n
}

func (n *node) serve(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	var topics []string
	if q.Has("topics") {
		topics = strings.Split(q.Get("topics"), ",")
	}
	patterns, err := relay.ParsePatterns(topics)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	hub, own := q.Get("hub"), q.Get("account")
	s := Subscription{
		Hub:     hub,
		Account: own,
		Key:     q.Get("key"),
		Topics:  patterns,
		Cursor:  q.Get("cursor") == "true",
		After:   q.Get("after"),
	}
	s.Allows = func(h, account string) bool {
		return (hub == "" || hub == h) && h != "foreign" && (account == "" || own == "*" || own == account)
	}
	if n.edit != nil {
		n.edit(&s)
	}
	serve := n.ServeWebSocket
	if r.Header.Get("Accept") == "text/event-stream" {
		serve = n.ServeEvents
	}
	if problem := serve(w, r, s); problem != nil {
		http.Error(w, problem.Error(), problem.Status())
	}
}

// Broadcast takes what has no place in a log.
func (n *node) Broadcast(list []relay.Notification) { n.Server.Broadcast(Batch{Notifications: list}) }

func (n *node) url(query string) string {
	return "ws" + strings.TrimPrefix(n.server.URL, "http") + "/?" + query
}

func (n *node) dialer() *websocket.Dialer {
	d := &websocket.Dialer{EnableCompression: n.deflater != nil}
	if n.server.TLS != nil {
		transport, _ := n.server.Client().Transport.(*http.Transport)
		d.TLSClientConfig = transport.TLSClientConfig.Clone()
		d.TLSClientConfig.NextProtos = []string{"http/1.1"}
	}
	return d
}

func (n *node) dial(t testing.TB, query string) *websocket.Conn {
	t.Helper()
	conn, answer, err := n.dialer().Dial(n.url(query), nil)
	if err != nil {
		t.Fatalf("dial %s: %v", query, err)
	}
	_ = answer.Body.Close()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func event(hub, account, topic string, number int) relay.Notification {
	return sized(hub, account, topic, number, 0)
}

func sized(hub, account, topic string, number, padding int) relay.Notification {
	data := fmt.Appendf(nil, `{"topic":%q,"n":%d,"hub":%q,"pad":"`, topic, number, hub)
	data = append(append(data, bytes.Repeat([]byte("x"), padding)...), `"}`...)
	return relay.Notification{Hub: hub, Account: account, Topic: topic, Data: data}
}

// numbers reads count messages and returns their numbers.
func numbers(t testing.TB, conn *websocket.Conn, count int) []int {
	t.Helper()
	var list []int
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	for range count {
		kind, data, err := conn.ReadMessage()
		if err != nil {
			t.Fatalf("after %v: %v", list, err)
		}
		if kind != websocket.TextMessage {
			t.Fatalf("message of type %d", kind)
		}
		var m struct{ N int }
		if err := json.Unmarshal(data, &m); err != nil {
			t.Fatal(err)
		}
		list = append(list, m.N)
	}
	return list
}

// wantClose reads until the connection is closed, and checks code and reason.
func wantClose(t testing.TB, conn *websocket.Conn, code int, reason string) {
	t.Helper()
	for {
		_, _, err := conn.ReadMessage()
		if err == nil {
			continue
		}
		var closed *websocket.CloseError
		if !errors.As(err, &closed) || closed.Code != code || !strings.Contains(closed.Text, reason) {
			t.Errorf("the connection ended with %v, want %d %q", err, code, reason)
		}
		return
	}
}

func TestBroadcast_MatchesSubscriptions(t *testing.T) {
	t.Parallel()
	testBroadcast(t, startNode(t, Options{}, nil))
}

// Allows is called once for all clients with the same VisibilityKey.
func TestBroadcast_SharesVisibility(t *testing.T) {
	t.Parallel()
	testBroadcast(t, startNode(t, Options{}, func(s *Subscription) { s.VisibilityKey = "of " + s.Account }))
}

func testBroadcast(t *testing.T, n *node) {
	t.Helper()
	list := []relay.Notification{
		event("h1", "a", "container.created", 1),
		event("h1", "b", "container.error", 2),
		event("h2", "a", "stack.created", 3),
		event("h1", "", "container.instance.error", 4),
		event("h3", "b", "stack.error", 5),
		event("foreign", "a", "stack.error", 6),
		event("h1", "a", "hubrelay.deadletter", 7),
		event("h1", "a", "job.created", 8),
	}
	tests := []struct {
		query string
		want  []int
	}{
		{"hub=h1&account=*", []int{1, 2, 4, 8}},
		{"hub=h1&account=a", []int{1, 4, 8}},
		{"hub=h1&account=a", []int{1, 4, 8}},
		{"hub=h1&account=b", []int{2, 4}},
		{"hub=h1", []int{4}},
		{"hub=h2&account=a", []int{3}},
		{"hub=h1&account=*&topics=*.error", []int{2, 4}},
		{"hub=h1&account=*&topics=container.*,!*.error", []int{1}},
		{"hub=h1&account=*&topics=hubrelay.*,job.*", []int{8}},
		{"account=a", []int{1, 3, 4, 8}},
		{"account=b", []int{2, 4, 5}},
		{"account=*", []int{1, 2, 3, 4, 5, 8}},
		{"account=", []int{4}},
		{"account=*&topics=stack.*", []int{3, 5}},
		{"hub=nobody&account=*", nil},
	}
	for _, singly := range []bool{true, false} {
		conns := make([]*websocket.Conn, len(tests))
		for i, test := range tests {
			conns[i] = n.dial(t, test.query)
		}
		if singly {
			for i := range list {
				n.Broadcast(list[i : i+1])
			}
		} else {
			n.Broadcast(list)
		}
		for _, hub := range []string{"h1", "h2", "h3", "nobody"} { // a last one for each, to detect extra messages
			n.Broadcast([]relay.Notification{event(hub, "", "stack.container.job.error", 99)})
		}
		for i, test := range tests {
			if got := numbers(t, conns[i], len(test.want)); !slices.Equal(got, test.want) {
				t.Errorf("%s (singly %v): got %v, want %v", test.query, singly, got, test.want)
			}
			if strings.Contains(test.query, "topics") {
				continue
			}
			if got := numbers(t, conns[i], 1); got[0] != 99 {
				t.Errorf("%s (singly %v): got %d behind the last", test.query, singly, got[0])
			}
		}
	}
}

func TestBroadcast_SendsCompleteFrames(t *testing.T) {
	t.Parallel()
	for name, start := range plainAndTLS {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := startNodeOver(t, Options{QueueBytes: 32 << 20}, nil, start)
			conn := n.dial(t, "hub=h&account=*")
			sizes := []int{0, 1, 80, 90, 100, 1000, 65_450, 65_480, 65_536, 200_000, 3}
			var list []relay.Notification
			for i := range 60 {
				list = append(list, sized("h", "a", "job.created", i, sizes[i%len(sizes)]))
			}
			n.Broadcast(list)
			for i := range list {
				_, data, err := conn.ReadMessage()
				if err != nil {
					t.Fatal(err)
				}
				if string(data) != string(list[i].Data) {
					t.Fatalf("message %d differs: %d bytes, want %d", i, len(data), len(list[i].Data))
				}
			}
		})
	}
}

// Two partitions broadcast at once, clients come and go, pings run: each client sees each hub in order.
func TestBroadcast_KeepsOrderPerHub(t *testing.T) {
	t.Parallel()
	const messages = 2000
	n := startNode(t, Options{PingInterval: 20 * time.Millisecond, QueueBytes: 64 << 20}, nil)
	queries := []string{"hub=h1&account=*", "hub=h2&account=*", "account=*", "account=a"}
	var readers, writers sync.WaitGroup
	for i := range 12 {
		query := queries[i%len(queries)]
		conn := n.dial(t, query)
		expected := messages
		if i%len(queries) > 1 {
			expected *= 2
		}
		readers.Go(func() { checkOrder(t, conn, expected) })
	}
	done := make(chan struct{})
	churn := make(chan struct{})
	go func() {
		defer close(churn)
		for {
			select {
			case <-done:
				return
			default:
				if conn, answer, err := websocket.DefaultDialer.Dial(n.url("account=*&topics=job.*"), nil); err == nil {
					_ = answer.Body.Close()
					_ = conn.Close()
				}
			}
		}
	}()
	for _, hub := range []string{"h1", "h2"} {
		writers.Go(func() {
			for i := 0; i < messages; i += 1 + i%7 {
				var batch []relay.Notification
				for k := i; k < min(i+1+i%7, messages); k++ {
					batch = append(batch, sized(hub, "a", "job.created", k, k%300))
				}
				n.Broadcast(batch)
			}
		})
	}
	writers.Wait()
	readers.Wait()
	close(done)
	<-churn
}

func checkOrder(t *testing.T, conn *websocket.Conn, expected int) {
	next := map[string]int{}
	for range expected {
		_, data, err := conn.ReadMessage()
		if err != nil {
			t.Errorf("read: %v", err)
			return
		}
		var m struct {
			N   int
			Hub string
		}
		if err := json.Unmarshal(data, &m); err != nil {
			t.Errorf("decode %q: %v", data, err)
			return
		}
		if next[m.Hub] != m.N {
			t.Errorf("hub %s: got %d, want %d", m.Hub, m.N, next[m.Hub])
			return
		}
		next[m.Hub]++
	}
}

func TestUpgrade_SubscribesBeforeResponse(t *testing.T) {
	t.Parallel()
	var n *node
	admitted := 0
	n = startNode(t, Options{}, func(s *Subscription) {
		s.Admit = func(context.Context, func()) *relay.Error {
			admitted++
			n.Broadcast([]relay.Notification{event("h", "", "job.created", 2*admitted)})
			return nil
		}
	})
	for i := range 200 {
		conn := n.dial(t, "hub=h")
		n.Broadcast([]relay.Notification{event("h", "", "job.created", 2*i+3)})
		if got := numbers(t, conn, 2); !slices.Equal(got, []int{2*i + 2, 2*i + 3}) {
			t.Fatalf("got %v", got)
		}
		_ = conn.Close()
	}
}

// plainAndTLS are the ways to start a server, with and without TLS.
var plainAndTLS = map[string]func(*httptest.Server){
	"plain": (*httptest.Server).Start, "tls": (*httptest.Server).StartTLS,
}
