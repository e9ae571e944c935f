package queue

import (
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Entries that a consumer has read are being delivered. A full queue drops only those after them, and no more than it must.
func TestEnqueue_KeepsReadEntries(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *testStores) {
		mustAppend(t, b, notifications("h", 1, 8)...)
		log, queue := readLog(t, b, 0), Key(b.Keys(), "a", 0)
		from := "0-0"
		enqueue := func(maxBacklog, first, count int) (dropped int64) {
			t.Helper()
			e := EnqueueRequest{From: from, Sinks: []string{"a"}, MaxBacklogs: []int64{int64(maxBacklog)}}
			for _, n := range log[first : first+count] {
				e.To = n.Cursor
				e.Matches = append(e.Matches, SinkMatch{ID: n.Cursor, Sinks: []int{0}})
			}
			from = e.To
			r, err := b.Enqueue(t.Context(), e)
			if err != nil || !r.Committed {
				t.Fatalf("got %+v, %v, want a commit", r, err)
			}
			return r.Dropped[0]
		}
		wantQueue := func(want ...int) {
			t.Helper()
			var ids []string
			for _, i := range want {
				ids = append(ids, log[i].ID)
			}
			if got := readQueue(t, b, "a"); !slices.Equal(got, ids) {
				t.Errorf("got queue %v, want %v", got, ids)
			}
		}
		if n := enqueue(4, 0, 4); n != 0 {
			t.Errorf("a full queue has dropped %d entries", n)
		}
		if err := b.Commands().XGroupCreate(t.Context(), queue, "g", "0").Err(); err != nil {
			t.Fatal(err)
		}
		read := &redis.XReadGroupArgs{Group: "g", Consumer: "c", Streams: []string{queue, ">"}, Count: 2, Block: -1}
		if err := b.Commands().XReadGroup(t.Context(), read).Err(); err != nil {
			t.Fatal(err)
		}
		if n := enqueue(4, 4, 2); n != 0 { // four unread entries
			t.Errorf("dropped %d entries, although consumers have read two", n)
		}
		if n := enqueue(4, 6, 1); n != 1 {
			t.Errorf("dropped %d entries, want one", n)
		}
		wantQueue(0, 1, 3, 4, 5, 6)
		if got, err := b.DroppedBefore(t.Context(), 0, "a"); err != nil || got != log[3].Cursor {
			t.Errorf("dropped before %s, %v, want %s", got, err, log[3].Cursor)
		}
		// A much smaller maximum is reached in steps.
		if n := enqueue(1, 7, 1); n != 2 {
			t.Errorf("dropped %d entries, want twice as many as copied", n)
		}
		wantQueue(0, 1, 5, 6, 7)
		// Without entries in delivery, the beginning of the stream is trimmed.
		if err := b.Commands().XAck(t.Context(), queue, "g", log[0].Cursor, log[1].Cursor).Err(); err != nil {
			t.Fatal(err)
		}
		if err := b.Commands().XDel(t.Context(), queue, log[0].Cursor, log[1].Cursor).Err(); err != nil {
			t.Fatal(err)
		}
		mustAppend(t, b, notifications("h", 9, 9)...)
		log = readLog(t, b, 0)
		if n := enqueue(1, 8, 1); n != 3 {
			t.Errorf("dropped %d entries, want three", n)
		}
		wantQueue(8)
	})
}

// A full queue stores the position before which it has dropped entries, until the data of its sink is deleted.
func TestDroppedBefore(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *testStores) {
		state, err := b.RegisterSinks(t.Context(), 0, map[string]bool{"a": true})
		if err != nil {
			t.Fatal(err)
		}
		mustAppend(t, b, notifications("h", 1, 5)...)
		log := readLog(t, b, 0)
		dropped := func() string {
			t.Helper()
			position, err := b.DroppedBefore(t.Context(), 0, "a")
			if err != nil {
				t.Fatal(err)
			}
			return position
		}
		if got := dropped(); got != "" {
			t.Errorf("an empty queue has dropped entries before %s", got)
		}
		e := EnqueueRequest{
			From: state.Position, To: log[4].Cursor, Generation: state.Generation, Sinks: []string{"a"}, MaxBacklogs: []int64{2},
		}
		for _, n := range log {
			e.Matches = append(e.Matches, SinkMatch{ID: n.Cursor, Sinks: []int{0}})
		}
		if r, err := b.Enqueue(t.Context(), e); err != nil || r.Dropped[0] != 3 {
			t.Fatalf("got %+v, %v, want three dropped entries", r, err)
		}
		if got := dropped(); got != log[3].Cursor {
			t.Errorf("got %s, want %s", got, log[3].Cursor)
		}
		if err := b.ForgetSink(t.Context(), 0, "a"); err != nil {
			t.Fatal(err)
		}
		if got := dropped(); got != "" {
			t.Errorf("a forgotten sink has dropped entries before %s", got)
		}
	})
}
