package clients

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
)

// advance broadcasts so many notifications of a hub with positions from first on.
func (n *node) advance(hub string, first, count int) {
	var list []relay.Notification
	for i := range count {
		e := event(hub, "a", "job.created", first+i)
		e.Cursor = fmt.Sprintf("%d-0", first+i)
		list = append(list, e)
	}
	n.Server.Broadcast(Batch{Notifications: list})
}

// A client that receives no notification gets one new cursor, if it asked for cursors.
func TestPing_RefreshesStaleCursor(t *testing.T) {
	t.Parallel()
	n := startNode(t, Options{PingInterval: 20 * time.Millisecond, PongTimeout: patience}, nil)
	conns := map[string]*websocket.Conn{}
	pings := make(chan string, 100_000)
	for _, query := range []string{"hub=quiet&cursor=true", "account=q&cursor=true", "hub=quiet&account=a"} {
		conn := n.dial(t, query)
		answer := conn.PingHandler()
		conn.SetPingHandler(func(s string) error {
			pings <- query
			return answer(s)
		})
		conns[query] = conn
	}
	n.advance("busy", 1, staleCursorEntries)
	n.feeds[0].mu.Lock()
	want := string(n.feeds[0].formatCursor(n.feeds[0].positions))
	n.feeds[0].mu.Unlock()
	for query, conn := range conns {
		if query == "hub=quiet&account=a" {
			continue
		}
		if m := next(t, conn); m.Topic != relay.TopicCursor || !equalPositions(t, 1, m.Cursor, want) {
			t.Fatalf("%s: got %s, want a cursor like %s", query, m.text, want)
		}
	}
	n.advance("busy", staleCursorEntries+1, 10)
	var done sync.WaitGroup
	for query, conn := range conns {
		done.Go(func() {
			if m, err := read(conn); err != nil || m.Topic != "job.created" {
				t.Errorf("%s: nothing new is worth %s: %v", query, m.text, err)
			}
		})
	}
	seen := map[string]int{}
	for seen["hub=quiet&cursor=true"] < 5 || seen["account=q&cursor=true"] < 5 || seen["hub=quiet&account=a"] < 5 {
		select {
		case query := <-pings:
			seen[query]++
		case <-time.After(patience):
			t.Fatal("no ping")
		}
	}
	n.Broadcast([]relay.Notification{event("quiet", "", "job.created", 1)})
	done.Wait()
}

func TestCursorIsStale(t *testing.T) {
	t.Parallel()
	h := New(Options{PingInterval: 25 * time.Second})
	c := &connection{server: h, format: frame.WithCursor, feed: h.feeds[0]}
	for i, step := range []struct {
		moves int  // of the line since the last ping
		sent  bool // whether the client got one of them
		lags  bool
	}{
		{moves: 10_000, sent: true},
		{moves: staleCursorEntries - 1},
		{moves: 1, lags: true}, // 50 s of a minute, and lagEntries
		{moves: staleCursorEntries, sent: true},
		{moves: 0},
		{moves: 0},
		{moves: 0}, // without new entries there is no new cursor
		{moves: 1, lags: true},
	} {
		list := make([]relay.Notification, step.moves)
		h.feeds[0].mu.Lock()
		h.feeds[0].appendBatch(0, list)
		h.feeds[0].mu.Unlock()
		if step.sent {
			c.pingsSinceMessage = 0
		}
		if got := c.cursorIsStale(); got != step.lags {
			t.Fatalf("ping %d: it lags: %v", i, got)
		}
	}
	if c.format = 0; c.cursorIsStale() {
		t.Error("who wants no cursors lags")
	}
}
