package clients

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// testLog is a log with its connection.
type testLog struct {
	*redisconn.Conn
	*eventlog.Log
}

// relayed is a node whose broadcasts come out of a real log.
type relayed struct {
	*node
	log   *testLog
	reads atomic.Int64 // of the log by replays
	id    atomic.Int64
}

// ReadFrom counts.
func (r *relayed) ReadFrom(
	ctx context.Context,
	partition int,
	after streamid.Position,
	count int,
) (streamid.Position, bool, []relay.Notification, error) {
	r.reads.Add(1)
	return r.log.ReadFrom(ctx, partition, after, count)
}

func startRelayed(t testing.TB, redis *redistest.Server, partitions int, o Options) *relayed {
	t.Helper()
	return startRelayedOver(t, redis, partitions, o, (*httptest.Server).Start)
}

func startRelayedOver(
	t testing.TB,
	redis *redistest.Server,
	partitions int,
	o Options,
	start func(*httptest.Server),
) *relayed {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	c, err := redisconn.Open(ctx, redisconn.Options{URL: redis.URL(), Partitions: partitions})
	if err != nil {
		t.Fatal(err)
	}
	b := &testLog{c, eventlog.New(c, c.Keys(), eventlog.Options{})}
	r := &relayed{log: b}
	o.Partitions, o.Partition, o.History = partitions, b.Keys().Partition, r
	o.PingInterval = cmp.Or(
		o.PingInterval,
		time.Hour,
	) // on a busy machine a place came with one, between what was expected
	r.node = startNodeOver(t, o, nil, start)
	var tails sync.WaitGroup
	for p := range partitions {
		from, follow, err := b.TailFrom(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		r.SetPosition(p, from)
		tails.Go(func() {
			_ = follow(ctx, func(batch eventlog.Batch) {
				r.Server.Broadcast(
					Batch{Partition: p, Notifications: batch.Notifications, Gap: batch.Gap, End: batch.Last},
				)
			})
		})
	}
	t.Cleanup(func() {
		cancel()
		tails.Wait()
		b.Close()
	})
	return r
}

// publish stores notifications of a hub with the numbers from first on.
func (r *relayed) publish(t testing.TB, hub string, first, count, padding int) {
	t.Helper()
	var list []relay.Notification
	for i := range count {
		n := sized(hub, "a", "job.created", first+i, padding)
		n.ID = fmt.Sprintf("%024x", r.id.Add(1))
		list = append(list, n)
	}
	if _, err := r.log.Append(t.Context(), eventlog.AppendRequest{Hub: hub, Notifications: list}); err != nil {
		t.Error(err)
	}
}

// message holds the fields that the tests check.
type message struct {
	N      int
	Hub    string
	Topic  string
	Cursor string
	Object relay.Object
	text   string
}

func next(t testing.TB, conn *websocket.Conn) message {
	t.Helper()
	m, err := read(conn)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func read(conn *websocket.Conn) (message, error) {
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	_, data, err := conn.ReadMessage()
	if err != nil {
		return message{}, err
	}
	m := message{text: string(data)}
	return m, json.Unmarshal(data, &m)
}

// expect reads messages of one hub with the numbers from first up to last, and returns them.
func expect(t testing.TB, conn *websocket.Conn, first, last int) []message {
	t.Helper()
	var list []message
	for i := first; i <= last; i++ {
		m := next(t, conn)
		if m.N != i || m.Topic != "job.created" {
			t.Fatalf("got %.200s, want number %d", m.text, i)
		}
		list = append(list, m)
	}
	return list
}

// settled waits until the node has broadcast the whole log to hub streams and account streams.
func (r *relayed) settled(t testing.TB) {
	t.Helper()
	for p, l := range r.feeds {
		want, _, err := r.log.TailFrom(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		waitForPosition(t, l, p, want)
		waitForPosition(t, r.mergedFeed, p, want) // broadcasts after the feed of the partition
	}
}

func waitForPosition(t testing.TB, f *feed, partition int, want streamid.Position) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		f.mu.Lock()
		at, moved := f.positions[partition-f.firstPartition], f.advancedChan()
		f.mu.Unlock()
		if at == want {
			return
		}
		select {
		case <-moved:
		case <-time.After(time.Until(deadline)):
			t.Fatalf("partition %d is at %s, the log at %s", partition, at, want)
		}
	}
}

// joined waits until every client gets broadcasts.
func (r *relayed) joined(t testing.TB) {
	t.Helper()
	testkit.WaitFor(t, "every client has joined", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.index.mu.Lock()
		defer r.index.mu.Unlock()
		for c := range r.connections {
			if c.group == nil {
				return false
			}
		}
		return true
	})
}
