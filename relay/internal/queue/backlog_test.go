package queue

import (
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// readEntries reads entries of a sink's queue with a consumer.
func readEntries(t *testing.T, b *testStores, sink string, count int64) {
	t.Helper()
	queue := Key(b.Keys(), sink, 0)
	if err := b.Commands().XGroupCreate(t.Context(), queue, "g", "0").Err(); err != nil {
		t.Fatal(err)
	}
	read := &redis.XReadGroupArgs{Group: "g", Consumer: "c", Streams: []string{queue, ">"}, Count: count, Block: -1}
	if err := b.Commands().XReadGroup(t.Context(), read).Err(); err != nil {
		t.Fatal(err)
	}
}

// Entries that a consumer has read are being delivered. DropOldest drops only those after them, and no more than it must.
func TestDropOldest(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *testStores) {
		mustAppend(t, b, notifications("h", 1, 8)...)
		log := readLog(t, b, 0)
		if r := enqueueAll(t, b, "", "0-0", 0, "a"); !r.Committed || r.Lengths[0] != 8 {
			t.Fatalf("got %+v, want 8 entries", r)
		}
		drop := func(maxUnread, wantDropped int64, wantBefore int, wantQueue ...int) {
			t.Helper()
			if n, err := b.DropOldest(t.Context(), "a", 0, maxUnread); n != wantDropped || err != nil {
				t.Errorf("dropped %d entries, %v, want %d", n, err, wantDropped)
			}
			before := ""
			if wantBefore >= 0 {
				before = log[wantBefore].Cursor
			}
			if got, err := b.DroppedBefore(t.Context(), 0, "a"); err != nil || got != before {
				t.Errorf("dropped before %q, %v, want %q", got, err, before)
			}
			var ids []string
			for _, i := range wantQueue {
				ids = append(ids, log[i].ID)
			}
			if got := readQueue(t, b, "a"); !slices.Equal(got, ids) {
				t.Errorf("got queue %v, want %v", got, ids)
			}
		}
		drop(8, 0, -1, 0, 1, 2, 3, 4, 5, 6, 7)
		drop(7, 1, 1, 1, 2, 3, 4, 5, 6, 7)
		readEntries(t, b, "a", 2)
		drop(5, 0, 1, 1, 2, 3, 4, 5, 6, 7)
		drop(3, 2, 5, 1, 2, 5, 6, 7)
		queue := Key(b.Keys(), "a", 0)
		if err := b.Commands().XDel(t.Context(), queue, log[1].Cursor, log[2].Cursor).Err(); err != nil {
			t.Fatal(err)
		}
		if err := b.Commands().XAck(t.Context(), queue, "g", log[1].Cursor, log[2].Cursor).Err(); err != nil {
			t.Fatal(err)
		}
		drop(1, 2, 7, 7)
		if lengths, err := b.Lengths(t.Context(), 0, []string{"a", "none"}); !slices.Equal(lengths, []int64{1, 0}) || err != nil {
			t.Errorf("got lengths %v, %v", lengths, err)
		}
		if err := b.ForgetSink(t.Context(), 0, "a"); err != nil {
			t.Fatal(err)
		}
		drop(1, 0, -1)
	})
}

// A script reads at most about a MiB of what it drops, whatever the sizes of the entries are, and takes few at once if large ones may
// follow. DropOldest repeats it.
func TestDropOldest_LimitsScripts(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := open(t, s, redisconn.Options{})
	queue := Key(b.Keys(), "a", 0)
	add := func(count, size int) {
		t.Helper()
		for part := range slices.Chunk(make([]struct{}, count), max(1, 1<<20/size)) {
			_, err := b.Commands().Pipelined(t.Context(), func(p redis.Pipeliner) error {
				for range part {
					p.XAdd(t.Context(), &redis.XAddArgs{Stream: queue, Values: []string{"data", strings.Repeat("x", size)}})
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	add(20_000, 100)
	readEntries(t, b, "a", 10)
	add(20, 200_000)
	add(5, 100)
	run := func(maxUnread int) (dropped int, more bool) {
		t.Helper()
		keys := []string{queue, "position"}
		reply, err := dropOldestScript.Run(t.Context(), b.Commands(), keys, maxUnread, maxScanBytes).Int64Slice()
		if err != nil {
			t.Fatal(err)
		}
		return int(reply[0]), reply[1] == 1
	}
	if n, more := run(5); n < 2000 || n > 10_000 || !more {
		t.Errorf("small entries: dropped %d in one script, more %t, want some thousands", n, more)
	}
	for more := true; more; {
		_, more = run(25)
	}
	if n, more := run(5); n < 3 || n > 8 || !more {
		t.Errorf("large entries: dropped %d in one script, more %t, want about a MiB", n, more)
	}
	if _, err := b.DropOldest(t.Context(), "a", 0, 3); err != nil {
		t.Fatal(err)
	}
	if n := b.Commands().XLen(t.Context(), queue).Val(); n != 13 {
		t.Errorf("%d entries are left, want 10 that were read and 3 others", n)
	}
	add(3, 100)
	if err := b.Commands().ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if n, err := b.DropOldest(t.Context(), "a", 0, 1); n != 5 || err != nil {
		t.Errorf("in a full Redis: dropped %d entries, %v, want 5", n, err)
	}
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
		if r := enqueueAll(t, b, "", state.Position, state.Generation, "a"); !r.Committed {
			t.Fatalf("got %+v", r)
		}
		if n, err := b.DropOldest(t.Context(), "a", 0, 2); n != 3 || err != nil {
			t.Fatalf("dropped %d, %v, want three", n, err)
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
