package hub

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/relay/backbone/redistest"
)

// expectResync reads a resync frame of a pipeline and returns its cursor, which only those without cursors do not get.
func expectResync(t *testing.T, conn *websocket.Conn, hub, account string) string {
	t.Helper()
	m := next(t, conn)
	var all map[string]any
	if err := json.Unmarshal([]byte(m.text), &all); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`"context":{"hub_id":%q,"account_id":%q,"environments":[],"dns_zones":[],"clusters":[],"containers":[]},"flags":null`, hub, account)
	if m.Topic != "hubrelay.resync" || len(m.Object.ID) != 24 || m.Object.State != "gap" || m.Object.Error == "" || !strings.Contains(m.text, want) {
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
			key := r.log.Keys().Log(partitions - 1)
			if err := r.log.Commands().XTrimMaxLen(t.Context(), key, 3).Err(); err != nil {
				t.Fatal(err)
			}
			// Another node has kept nothing. What is left comes behind the resync, and again for its cursor.
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
			r.publish(t, hub, 11, 1, 0)
			expect(t, conn, 11, 11)
			r.wantFigures(t, "map[ended true:5 started:5] map[log:14] map[cursor:2]")
			expect(t, r.dial(t, "account=a&hub="+hub+"&after="+ofHub[9].Cursor), 11, 11)
			r.wantFigures(t, "map[ended true:6 started:6] map[log:14 memory:1] map[cursor:2]")
		})
	}
}

// Everybody whom a gap concerns is told, with cursors and without; a client in the middle of its replay, too.
func TestFlushWhileConnected(t *testing.T) {
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
			if err := r.log.Commands().Del(t.Context(), r.log.Keys().Log(0)).Err(); err != nil {
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
