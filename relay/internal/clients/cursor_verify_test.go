package clients

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
)

// asked is a log that contains no position and counts its reads.
type asked struct {
	counts []int
	then   func() // called with each question
}

func (a *asked) ReadFrom(
	_ context.Context,
	_ int,
	after streamid.Position,
	count int,
) (streamid.Position, bool, []relay.Notification, error) {
	a.counts = append(a.counts, count)
	a.then()
	return after, true, nil, nil
}

// Clients can invent cursors, so verifying one is cheap and stops when the client has left.
func TestVerify_IsCheapForInventedCursors(t *testing.T) {
	t.Parallel()
	const partitions = 8
	for name, tt := range map[string]struct {
		leaves bool
		want   []int
	}{
		"stays":  {false, slices.Repeat([]int{1}, partitions)},
		"leaves": {true, []int{1}},
	} {
		log := &asked{then: func() {}}
		h := New(Options{Partitions: partitions, History: log})
		at := make([]streamid.Position, partitions)
		for p := range partitions {
			h.SetPosition(p, streamid.Position{MS: 100})
			h.Broadcast(Batch{Partition: p, Notifications: []relay.Notification{{Cursor: "105-0"}}})
			at[p].MS = 102
		}
		c := &connection{server: h, feed: h.mergedFeed, fd: -1, writing: true, lease: &connectionLease{}}
		r, problem := h.newReplay(t.Context(), c, &Subscription{After: string(testCursors.Append(nil, partitions, 0, at))})
		if problem != nil {
			t.Fatal(problem)
		}
		r.ctx, r.cancel = context.WithCancel(t.Context())
		if tt.leaves {
			log.then = r.leave
		}
		r.position = r.feed.locate(r.positions)
		if got := r.verifyPositions(); got == tt.leaves || !slices.Equal(log.counts, tt.want) {
			t.Errorf("%s: proved %v, and the log was asked for %v, want %v", name, got, log.counts, tt.want)
		}
	}
}

// After a failover the log may have another entry at the cursor of a client. The client gets a resync.
func TestVerify_DetectsReusedID(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	kept, read := startRelayed(t, redis, 1, Options{}), startRelayed(t, redis, 1, Options{HistoryBytes: 1})
	first := kept.dial(t, "account=a&hub=h&cursor=true")
	kept.publish(t, "h", 1, 3, 0)
	seen, err := testCursors.Parse(expect(t, first, 1, 3)[1].Cursor, 1)
	if err != nil {
		t.Fatal(err)
	}
	at, _ := seen.At(0)
	at.IDHash = at.IDHash%math.MaxUint16 + 1
	fresh := startRelayed(t, redis, 1, Options{}) // starts after all of it
	for name, node := range map[string]*relayed{"kept": kept, "read": read, "fresh": fresh} {
		node.settled(t)
		conn := node.dial(t, "account=a&hub=h&after="+string(testCursors.Append(nil, 1, 0, []streamid.Position{at})))
		if m := next(t, conn); m.Topic != relay.TopicResync {
			t.Errorf("%s: it begins with %s", name, m.text)
		}
		expect(t, conn, 2, 3)
	}
}

// A client that has seen everything reconnects without a read of the log, also to a restarted node and with a cursor
// without a hash. Its cursor does not affect the cursors of others.
func TestReplay_ReadsNothingIfCurrent(t *testing.T) {
	t.Parallel()
	const partitions = 2
	redis := redistest.Start(t)
	before := startRelayed(t, redis, partitions, Options{})
	hubs := hubsInEach(before)
	conn := before.dial(t, "account=a&cursor=true")
	var last string
	for _, hub := range hubs {
		before.publish(t, hub, 1, 1, 0)
		last = expect(t, conn, 1, 1)[0].Cursor
	}
	seen, err := testCursors.Parse(last, partitions)
	if err != nil {
		t.Fatal(err)
	}
	unproved := make([]streamid.Position, partitions)
	for p := range unproved {
		unproved[p], _ = seen.At(p)
		unproved[p].IDHash = 0
	}
	node := startRelayed(t, redis, partitions, Options{})
	var back []*websocket.Conn
	for _, after := range []string{string(testCursors.Append(nil, partitions, 0, unproved)), last} {
		back = append(back, node.dial(t, "account=a&after="+after))
		node.joined(t)
	}
	if n := node.reads.Load(); n != 0 {
		t.Errorf("the log was read %d times", n)
	}
	node.publish(t, hubs[0], 2, 1, 0)
	for _, conn := range back {
		at, err := testCursors.Parse(expect(t, conn, 2, 2)[0].Cursor, partitions)
		other, _ := at.At(1)
		if want, _ := seen.At(1); err != nil || other != want {
			t.Errorf("the cursor says %+v of the other partition, not %+v: %v", other, want, err)
		}
	}
}
