package clients

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/source/sourcestore"
)

// expectResync reads a resync frame of a stream and returns its cursor, which only those without cursors do not get.
func expectResync(t *testing.T, conn *websocket.Conn, hub, account string) string {
	t.Helper()
	m := next(t, conn)
	var all map[string]any
	if err := json.Unmarshal([]byte(m.text), &all); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(
		`"context":{"hub_id":%q,"account_id":%q,"environments":[],"dns_zones":[],"clusters":[],"containers":[]},`+
			`"flags":null`,
		hub,
		account,
	)
	if m.Topic != "hubrelay.resync" || len(m.Object.ID) != 24 || m.Object.State != "gap" || m.Object.Error == "" ||
		!strings.Contains(m.text, want) {
		t.Fatalf("got %.300s, want a resync with %s", m.text, want)
	}
	return m.Cursor
}

// A cursor whose entry was trimmed away gets a resync, then what is still there.
func TestTrimmedCursor(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d partitions", partitions), func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t)
			r := startRelayed(t, redis, partitions, Options{})
			hub := hubsInEach(r)[partitions-1]
			one, account := r.dial(t, "cursor=true&account=a&hub="+hub), r.dial(t, "cursor=true&account=a")
			r.publish(t, hub, 1, 10, 0)
			ofHub, ofAccount := expect(t, one, 1, 10), expect(t, account, 1, 10)
			key := eventlog.Key(r.log.Keys(), partitions-1)
			if err := r.log.Commands().XTrimMaxLen(t.Context(), key, 3).Err(); err != nil {
				t.Fatal(err)
			}
			// Another node has no history. The remaining entries follow the resync, and again for its cursor.
			r = startRelayed(t, redis, partitions, Options{})
			for query, from := range map[string]string{
				"account=a&hub=" + hub + "&after=": ofHub[2].Cursor, "account=a&after=": ofAccount[2].Cursor,
			} {
				name := ""
				owner := "a"
				if strings.Contains(query, "hub=") {
					name, owner = hub, ""
				}
				conn := r.dial(t, query+from)
				again := r.dial(t, query+expectResync(t, conn, name, owner))
				expect(t, conn, 8, 10)
				expect(t, again, 8, 10)
			}
			conn := r.dial(t, "account=a&hub="+hub+"&after="+ofHub[7].Cursor)
			expect(t, conn, 9, 10)
			r.joined(t) // else what follows may be part of a replay
			r.publish(t, hub, 11, 1, 0)
			expect(t, conn, 11, 11)
			r.wantFigures(t, "map[ended true:5 started:5] map[log:14] map[cursor:2]")
			expect(t, r.dial(t, "account=a&hub="+hub+"&after="+ofHub[9].Cursor), 11, 11)
			r.wantFigures(t, "map[ended true:6 started:6] map[log:14 memory:1] map[cursor:2]")
		})
	}
}

// equalPositions reports whether cursors have the same positions.
func equalPositions(t *testing.T, partitions int, cursors ...string) bool {
	t.Helper()
	var parsed [2]streamid.Cursor
	for i := range parsed {
		var err error
		if parsed[i], err = testCursors.Parse(cursors[i], partitions); err != nil {
			t.Fatal(err)
		}
	}
	return reflect.DeepEqual(parsed[0], parsed[1])
}

// A cursor of a log with another number of partitions gets a resync at once and continues from now.
func TestCursorOfAnotherLog(t *testing.T) {
	t.Parallel()
	for partitions, others := range map[int][]string{
		1: {ofLog(2, 0, 1), ofLog(2, 1, 1), ofLog(2, 0, 2)},
		2: {ofLog(1, 0, 1), ofLog(3, 2, 1), ofLog(3, 0, 3)},
	} {
		t.Run(fmt.Sprintf("%d partitions", partitions), func(t *testing.T) {
			t.Parallel()
			r := startRelayed(t, redistest.Start(t), partitions, Options{})
			hub := hubsInEach(r)[partitions-1]
			r.publish(t, hub, 1, 3, 0)
			r.settled(t)
			n := 3
			for _, after := range others {
				one, account := r.dial(t, "account=a&hub="+hub+"&after="+after), r.dial(t, "account=a&after="+after)
				ofHub, ofAccount := expectResync(t, one, hub, ""), expectResync(t, account, "", "a")
				events := r.listen(t, "account=a&hub="+hub+"&after="+after)
				if e, err := events.next(); err != nil || !strings.Contains(e.data, `"topic":"hubrelay.resync"`) ||
					!equalPositions(t, partitions, events.lastID, ofHub) {
					t.Errorf("an event stream begins with %s at %q, a websocket at %q: %v", e.data, events.lastID, ofHub, err)
				}
				if events.lastID == ofHub {
					t.Error("got the same cursor of the end twice, so a client sees that nobody has published")
				}
				n++
				r.publish(t, hub, n, 1, 0)
				events.expect(n, n)
				expect(t, one, n, n)
				expect(t, account, n, n)
				expect(t, r.dial(t, "account=a&hub="+hub+"&after="+ofHub), n, n)
				expect(t, r.dial(t, "account=a&after="+ofAccount), n, n)
			}
			r.wantFigures(t, "map[ended true:6 started:6] map[memory:6] map[cursor:9]")
		})
	}
}

// ofLog is a cursor of a log with so many partitions, with so many positions from the first on.
func ofLog(partitions, first, positions int) string {
	at := make([]streamid.Position, positions)
	for i := range at {
		at[i].MS = 1_795_000_000_000
	}
	return string(testCursors.Append(nil, partitions, first, at))
}

// A gap sends a resync to all affected clients, with and without cursors, also during a replay.
func TestGap_ResyncsConnectedClients(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d partitions", partitions), func(t *testing.T) {
			t.Parallel()
			r := startRelayed(t, redistest.Start(t), partitions, Options{})
			hubs := hubsInEach(r)
			hub := hubs[0]
			plain, with := r.dial(t, "account=a&hub="+hub), r.dial(t, "account=a&cursor=true&hub="+hub)
			account, none := r.dial(t, "account=a"), r.dial(t, "account=*&topics=image.*")
			r.publish(t, hub, 1, 3, 0)
			before := expect(t, with, 1, 3)
			expect(t, plain, 1, 3)
			expect(t, account, 1, 3)
			if err := r.log.Commands().Del(t.Context(), eventlog.Key(r.log.Keys(), 0)).Err(); err != nil {
				t.Fatal(err)
			}
			if got := expectResync(t, plain, hub, ""); got != "" {
				t.Errorf("cursor %q for a client without", got)
			}
			after := expectResync(t, with, hub, "")
			expectResync(t, account, "", "a")
			expectResync(t, none, "", "")
			resumed := r.dial(t, "account=a&hub="+hub+"&after="+after)
			lost := r.dial(t, "account=a&hub="+hub+"&after="+before[1].Cursor)
			expectResync(t, lost, hub, "")
			r.publish(t, hub, 4, 2, 0)
			for _, conn := range []*websocket.Conn{plain, with, account, resumed, lost} {
				expect(t, conn, 4, 5)
			}
		})
	}
}

// A resync of a source is sent at its position in the log to all affected clients, live and in replays, for any
// topics.
func TestResyncOfTheLog(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d partitions", partitions), func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t)
			r := startRelayed(t, redis, partitions, Options{})
			hubs := hubsInEach(r)
			hub, last := hubs[0], partitions-1
			other := r.dial(t, "cursor=true&account=a&hub="+hubs[last])
			one, account := r.dial(t, "cursor=true&account=a&hub="+hub), r.dial(t, "cursor=true&account=a")
			topics, events := r.dial(t, "account=*&topics=image.*"), r.dial(t, "account=b&hub="+hub)
			r.publish(t, hub, 1, 1, 0)
			first, ofAccount := expect(t, one, 1, 1)[0].Cursor, expect(t, account, 1, 1)[0].Cursor
			tell := func(hub string) {
				t.Helper()
				s, _, err := sourcestore.New(r.log.Conn, r.log.Keys()).Open(t.Context(), "up-"+hub, hub)
				if err != nil {
					t.Fatal(err)
				}
				gap := relay.Notification{
					ID:    "gap",
					Topic: relay.TopicResync,
					Hub:   hub,
					Data:  relay.ResyncEntry(hub, "gone", []string{"far"}),
				}
				b := sourcestore.Batch{Notifications: []relay.Notification{gap}}
				if err := s.Store(t.Context(), b); err != nil {
					t.Fatal(err)
				}
			}
			wantResync := func(conn *websocket.Conn, hub string) {
				t.Helper()
				m := next(t, conn)
				if want := fmt.Sprintf(`"hub_id":%q,"account_id":""`, hub); m.Topic != "hubrelay.resync" ||
					m.Object.Error != "gone" ||
					!strings.Contains(m.text, want) {
					t.Fatalf("got %.300s, want a resync with %s", m.text, want)
				}
			}
			tell(hub)
			for _, conn := range []*websocket.Conn{one, account, topics, events} {
				wantResync(conn, hub)
			}
			tell("")
			if partitions == 1 { // the same hub
				expect(t, other, 1, 1)
				wantResync(other, hub)
			}
			for _, conn := range []*websocket.Conn{one, account, topics, events, other} {
				wantResync(conn, "")
			}
			r.publish(t, hubs[last], 2, 1, 0)
			expect(t, other, 2, 2)
			expect(t, account, 2, 2)

			// Those who come back, at this node, and at one that has to read the log.
			for _, node := range []*relayed{r, startRelayed(t, redis, partitions, Options{})} {
				back := node.dial(t, "account=a&topics=image.*&hub="+hub+"&after="+first)
				wantResync(back, hub)
				wantResync(back, "")
				back = node.dial(t, "account=a&after="+ofAccount)
				came := map[string]int{} // in an order that holds for each partition alone
				for range 3 {
					came[next(t, back).Topic]++
				}
				if fmt.Sprint(came) != "map[hubrelay.resync:2 job.created:1]" {
					t.Errorf("an account's stream came back to %v", came)
				}
			}
			r.wantFigures(
				t,
				fmt.Sprintf(
					"map[ended true:2 started:2] map[memory:5] map[source:%d]",
					map[int]int{1: 14, 2: 13}[partitions],
				),
			)
		})
	}
}
