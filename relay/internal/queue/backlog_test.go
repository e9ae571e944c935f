package queue

import (
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay"
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

// A consumer delivers the entries that it has read, so DropOldest counts only others as dropped, and each only once.
func TestDropOldest(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *testStores) {
		mustAppend(t, b, notifications("h", 1, 12)...)
		log := readLog(t, b, 0)
		if r := enqueueAll(t, b, "", "0-0", 0, "a"); !r.Committed || r.Lengths[0] != 12 {
			t.Fatalf("got %+v, want 12 entries", r)
		}
		drop := func(maxLen, wantDropped int64, wantBefore int) {
			t.Helper()
			if n, err := b.DropOldest(t.Context(), "a", 0, maxLen); n != wantDropped || err != nil {
				t.Errorf("maximum %d: dropped %d entries, %v, want %d", maxLen, n, err, wantDropped)
			}
			before := ""
			if wantBefore >= 0 {
				before = log[wantBefore].Cursor
			}
			if got, err := b.DroppedBefore(t.Context(), 0, "a"); err != nil || got != before {
				t.Errorf("maximum %d: dropped before %q, %v, want %q", maxLen, got, err, before)
			}
			if got := readQueue(t, b, "a"); wantBefore >= 0 && got[0] != log[wantBefore].ID {
				t.Errorf("maximum %d: got queue %v, want it to begin with %s", maxLen, got, log[wantBefore].ID)
			}
		}
		drop(12, 0, -1)
		drop(11, 1, 1)
		readEntries(t, b, "a", 4) // from 1 to 4
		drop(9, 0, 3)
		drop(6, 1, 6)
		drop(5, 1, 7)
		queue := Key(b.Keys(), "a", 0)
		if err := b.Commands().XAck(t.Context(), queue, "g", log[1].Cursor, log[2].Cursor).Err(); err != nil {
			t.Fatal(err)
		}
		drop(2, 3, 10)
		if lengths, err := b.Lengths(t.Context(), 0, []string{"a", "none"}); !slices.Equal(lengths, []int64{2, 0}) || err != nil {
			t.Errorf("got lengths %v, %v", lengths, err)
		}
		if err := b.ForgetSink(t.Context(), 0, "a"); err != nil {
			t.Fatal(err)
		}
		drop(1, 0, -1)
	})
}

// fillQueue appends up to 10,000 notifications to the log and copies them to the queue of a sink.
func fillQueue(t *testing.T, b *testStores, sink string, list []relay.Notification) {
	t.Helper()
	for part := range slices.Chunk(list, 1000) {
		mustAppend(t, b, part...)
	}
	if r := enqueueAll(t, b, "", "0-0", 0, sink); !r.Committed {
		t.Fatal(r)
	}
}

// Small events displace as many of the older large ones as needed, not all of them.
func TestDropOldestBytes_KeepsWhatFits(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	const (
		large    = 60
		maxBytes = 2 << 20
	)
	list := notifications("h", 1, 9000)
	for i := range large {
		list[i].Data = []byte(`{"pad":"` + strings.Repeat("x", 20_000) + `"}`)
	}
	fillQueue(t, b, "a", list)
	key := Key(b.Keys(), "a", 0)
	before := b.Commands().MemoryUsage(t.Context(), key, 0).Val()
	dropped, err := b.DropOldestBytes(t.Context(), "a", 0, maxBytes)
	used, left := b.Commands().MemoryUsage(t.Context(), key, 0).Val(), b.Commands().XLen(t.Context(), key).Val()
	if err != nil || before < maxBytes*11/10 || used > maxBytes || used < maxBytes*9/10 {
		t.Errorf("got %d of %d bytes, %v, want about %d", used, before, err, maxBytes)
	}
	if dropped >= large || dropped+left != int64(len(list)) {
		t.Errorf("dropped %d entries, and %d are left of %d", dropped, left, len(list))
	}
}

// The memory of entries that consumers have read does not count, because dropping others would not free it.
func TestDropOldestBytes_IgnoresPending(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	const (
		read     = 600
		maxBytes = 64 << 10
	)
	fillQueue(t, b, "a", notifications("h", 1, read+200))
	readEntries(t, b, "a", read)
	if used := b.Commands().MemoryUsage(t.Context(), Key(b.Keys(), "a", 0), 0).Val(); used < 4*maxBytes {
		t.Fatalf("the queue needs %d bytes, want more", used)
	}
	for range 3 {
		if _, err := b.DropOldestBytes(t.Context(), "a", 0, maxBytes); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(readQueue(t, b, "a")); n < 200 {
		t.Errorf("%d entries are left, want at least the 200 that nobody has read", n)
	}
}

// A script that searches or counts entries reads about a MiB and some more entries, whatever their sizes are.
func TestCountAccounts_LimitsScripts(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	queue := Key(b.Keys(), "a", 0)
	add := func(count, size int) {
		t.Helper()
		for range count {
			values := []string{"account", "x", "data", strings.Repeat("x", size)}
			if err := b.Commands().XAdd(t.Context(), &redis.XAddArgs{Stream: queue, Values: values}).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	add(redisconn.MaxScanEntries, 100)
	add(20, 200_000)
	parts, next := []int64{}, "-"
	for next != "" {
		counts := make(map[string]int64)
		var err error
		if next, err = b.countAccountsFrom(t.Context(), queue, next, redisconn.MaxScanEntries, counts); err != nil {
			t.Fatal(err)
		}
		parts = append(parts, counts["x"])
	}
	if want := []int64{redisconn.MaxScanEntries, 8, 8, 4}; !slices.Equal(parts, want) {
		t.Errorf("got parts of %v entries, want %v", parts, want)
	}
	if counts, err := b.CountAccounts(t.Context(), "a", 0); err != nil || counts["x"] != redisconn.MaxScanEntries+20 {
		t.Errorf("got %v, %v, want all entries", counts, err)
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
