package clients

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

// connections returns the only page.
func connections(t *testing.T, n *node, s Selection) []ConnectionInfo {
	t.Helper()
	list, next, err := n.Connections(s)
	if err != nil || next != "" {
		t.Fatalf("%v, and another page behind %q", err, next)
	}
	return list
}

// TestConnections connects one of each kind.
func TestConnections(t *testing.T) {
	t.Parallel()
	began := time.Now()
	n := startNode(t, Options{}, nil)
	addresses := []string{
		n.dial(t, "hub=h&key=k1").LocalAddr().String(),
		n.dial(t, "account=a&key=k2&topics=job.*,!job.created").LocalAddr().String(),
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, n.server.URL+"/?hub=h&key=k2", http.NoBody)
	req.Header.Set("Accept", "text/event-stream")
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	answer, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	list := connections(t, n, Selection{})
	if len(list) != 3 {
		t.Fatalf("%d connections: %+v", len(list), list)
	}
	for i := range list {
		if list[i].ConnectedAt.Before(began) || list[i].ConnectedAt.After(time.Now()) ||
			i < len(addresses) && list[i].Address != addresses[i] {
			t.Errorf("%+v", list[i])
		}
		list[i].ConnectedAt, list[i].Address = time.Time{}, ""
	}
	want := []ConnectionInfo{
		{Hub: "h", Key: "k1", Topics: "*", State: ConnectionLive},
		{Account: "a", Key: "k2", Topics: "job.*,!job.created", State: ConnectionLive},
		{Hub: "h", Key: "k2", Topics: "*", SSE: true, State: ConnectionLive},
	}
	if !slices.Equal(list, want) {
		t.Errorf("%+v", list)
	}
	for s, want := range map[Selection]int{{Hub: "h"}: 2, {Key: "k2"}: 2, {Hub: "h", Key: "k2"}: 1, {Hub: "x"}: 0} {
		if got := len(connections(t, n, s)); got != want {
			t.Errorf("%+v chooses %d, want %d", s, got, want)
		}
	}
}

// TestConnections_Pages turns the pages while some leave.
func TestConnections_Pages(t *testing.T) {
	t.Parallel()
	n := startNode(t, Options{}, nil)
	for i := range 10 {
		n.dial(t, fmt.Sprintf("hub=h&key=k%d", i))
	}
	var keys []string
	after := ""
	for pages := 1; ; pages++ {
		page, next, err := n.Connections(Selection{Limit: 3, After: after})
		if err != nil || len(page) > 3 {
			t.Fatalf("a page of %d: %v", len(page), err)
		}
		for _, c := range page {
			keys = append(keys, c.Key)
		}
		if after = next; next == "" {
			if pages != 4 {
				t.Errorf("%d pages", pages)
			}
			break
		}
	}
	if got := strings.Join(keys, " "); got != "k0 k1 k2 k3 k4 k5 k6 k7 k8 k9" {
		t.Errorf("the pages have %s", got)
	}
	if _, _, err := n.Connections(Selection{After: "x"}); !errors.Is(err, ErrBadPageToken) {
		t.Errorf("a page that never was: %v", err)
	}
}

// TestConnections_QueuedBytes has a client that reads nothing.
func TestConnections_QueuedBytes(t *testing.T) {
	t.Parallel()
	n := startNode(t, Options{QueueBytes: 1 << 30}, nil)
	n.dial(t, "hub=h")
	if clients, bytes := n.QueueStats(); clients != 0 || bytes != 0 {
		t.Fatalf("%d bytes wait for %d clients", bytes, clients)
	}
	testkit.WaitFor(t, "something waits for a client that does not read", func() bool {
		n.Broadcast([]relay.Notification{sized("h", "", "job.created", 1, 1<<20)})
		return connections(t, n, Selection{})[0].Queued > 0
	})
	if clients, bytes := n.QueueStats(); clients != 1 || bytes == 0 {
		t.Errorf("%d bytes wait for %d clients", bytes, clients)
	}
}

// stuckLog answers no read until it is let go.
type stuckLog struct{ asked, leave chan struct{} }

func (l *stuckLog) ReadFrom(
	context.Context,
	int,
	streamid.Position,
	int,
) (streamid.Position, bool, []relay.Notification, error) {
	select {
	case l.asked <- struct{}{}:
	default:
	}
	<-l.leave
	return streamid.Position{}, false, nil, errors.New("let go")
}

// TestConnections_ReplayingState has a client whose history does not come.
func TestConnections_ReplayingState(t *testing.T) {
	t.Parallel()
	log := &stuckLog{asked: make(chan struct{}, 1), leave: make(chan struct{})}
	n := startNode(t, Options{History: log}, nil)
	t.Cleanup(func() { close(log.leave) })
	n.SetPosition(0, streamid.Position{MS: 9})
	n.dial(t, "account=a&topics=job.*&after="+string(testCursors.Append(nil, 1, 0, []streamid.Position{{MS: 5}})))
	<-log.asked
	list := connections(t, n, Selection{})
	if len(list) != 1 || list[0].State != ConnectionReplaying || list[0].Account != "a" || list[0].Topics != "job.*" {
		t.Errorf("%+v", list)
	}
}

// A replay ends when its client leaves, although it waits for the log, so it does not delay other replays or the end of the relay.
func TestReplay_EndsWithItsClient(t *testing.T) {
	t.Parallel()
	log := &stuckLog{asked: make(chan struct{}, 1), leave: make(chan struct{})}
	n := startNode(t, Options{History: log}, nil)
	t.Cleanup(func() { close(log.leave) })
	n.SetPosition(0, streamid.Position{MS: 9})
	const clients = 5
	var conns []*websocket.Conn
	for i := range uint64(clients) {
		after := string(testCursors.Append(nil, 1, 0, []streamid.Position{{MS: 1 + i}}))
		conns = append(conns, n.dial(t, "account=a&after="+after))
	}
	<-log.asked
	n.wantFigures(t, fmt.Sprintf("map[started:%d] map[] map[]", clients))
	for _, conn := range conns {
		_ = conn.Close()
	}
	n.wantFigures(t, fmt.Sprintf("map[ended false:%d started:%d] map[] map[]", clients, clients))
}

func BenchmarkConnectionsOf50000(b *testing.B) {
	n := New(Options{})
	for i := range 50_000 {
		c := &connection{server: n, feed: n.mergedFeed, opened: time.Now(), key: "k", handshakePending: true}
		c.lease, _ = n.reserveLease(nil, &Subscription{Hub: "h", Key: "k"})
		n.add(c, &Subscription{Hub: fmt.Sprint("h", i%5000)})
	}
	b.Run("page", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := n.Connections(Selection{Limit: MaxPage}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("locked", func(b *testing.B) {
		for b.Loop() {
			n.allConnections()
		}
	})
	b.Run("waiting", func(b *testing.B) {
		for b.Loop() {
			n.QueueStats()
		}
	})
}
