package queue

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/queue/subscriber"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

func TestStats(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b := open(t, server, redisconn.Options{Partitions: 2})
	ctx := t.Context()
	now := b.Commands().Time(ctx).Val()
	ago := func(d time.Duration) string { return fmt.Sprintf("%d-0", now.Add(-d).UnixMilli()) }
	for _, add := range [][2]string{
		{Key(b.Keys(), "a", 0), ago(time.Hour)},
		{Key(b.Keys(), "a", 1), ago(2 * time.Hour)},
		{Key(b.Keys(), "a", 1), ago(time.Minute)},
		{Key(b.Keys(), "c", 0), ago(-time.Hour)},
	} {
		if err := b.Commands().Do(ctx, "XADD", add[0], add[1], "id", "1").Err(); err != nil {
			t.Fatal(err)
		}
	}
	for sink, position := range map[string]string{"a": "+1-0", "b": "1-0"} {
		if err := b.Commands().HSet(ctx, SinkPositionsKey(b.Keys(), 1), sink, position).Err(); err != nil {
			t.Fatal(err)
		}
	}
	got, err := b.Stats(ctx, []string{"a", "b", "c"})
	if err != nil {
		t.Fatal(err)
	}
	if got[0].OldestAge < 2*time.Hour || got[0].OldestAge > 3*time.Hour {
		t.Errorf("oldest entry of a: got %s, want two hours", got[0].OldestAge)
	}
	got[0].OldestAge = 0
	if diff := cmp.Diff([]Stats{{Length: 3}, {CatchingUp: true}, {Length: 1}}, got); diff != "" {
		t.Errorf("statistics (-want +got):\n%s", diff)
	}
	server.Kill()
	if _, err := b.Stats(ctx, nil); !errors.Is(err, redisconn.ErrUnavailable) {
		t.Errorf("without Redis and sinks: %v, want redisconn.ErrUnavailable", err)
	}
}

func TestStore_SinkPositions(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *testStores) {
		ctx := t.Context()
		mustAppend(t, b, notifications("h", 1, 3)...)
		if _, err := b.EnsureSinks(ctx, 0, map[string]bool{"old": true}); err != nil {
			t.Fatal(err)
		}
		serving, err := b.RegisterSinks(ctx, 0, map[string]bool{"old": true})
		if err != nil {
			t.Fatal(err)
		}
		enqueueAll(t, b, "", "0-0", serving.Generation, "old")
		log := readLog(t, b, 0)
		mustAppend(t, b, notifications("h", 4, 5)...) // not dispatched yet
		end := readLog(t, b, 0)[4].Cursor
		if _, err := b.EnsureSinks(ctx, 0, map[string]bool{"new": false, "begin": true}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.RegisterSinks(ctx, 0, map[string]bool{"old": true, "new": false, "begin": true}); err != nil {
			t.Fatal(err)
		}
		for sink, want := range map[string]string{
			"old": log[2].Cursor, "new": end, "begin": "0-0", "unknown": log[2].Cursor,
		} {
			if got, err := b.FilledTo(ctx, 0, sink); err != nil || got != want {
				t.Errorf("FilledTo(%s): got %s, %v, want %s", sink, got, err, want)
			}
		}
		if err := b.Commands().XDel(ctx, Key(b.Keys(), "old", 0), log[1].Cursor).Err(); err != nil {
			t.Fatal(err)
		}
		queued, err := b.Queued(ctx, 0, "old", []string{log[0].Cursor, log[1].Cursor, log[2].Cursor, end})
		if diff := cmp.Diff([]bool{true, false, true, false}, queued); diff != "" || err != nil {
			t.Errorf("queued (-want +got), error %v:\n%s", err, diff)
		}
		names, err := b.KnownSinks(ctx)
		if diff := cmp.Diff([]string{"begin", "new", "old"}, names); diff != "" || err != nil {
			t.Errorf("known (-want +got), error %v:\n%s", err, diff)
		}
		if err := b.ForgetSink(ctx, 0, "old"); err != nil {
			t.Fatal(err)
		}
		if names, err := b.KnownSinks(ctx); err != nil || len(names) != 2 {
			t.Errorf("known sinks after ForgetSink: got %v, %v, want 2", names, err)
		}
	})
}

func TestHasAllAfter(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	ctx := t.Context()
	hasAll := func(after string) bool {
		t.Helper()
		ok, err := b.HasAllAfter(ctx, 0, after)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	const old, late = "1577836799999-18446744073709551615", "99999999999999-0"
	if !hasAll(old) || !hasAll("0-0") {
		t.Error("empty log: got false, want true")
	}
	mustAppend(t, b, notifications("h", 1, 3)...)
	log := readLog(t, b, 0)
	if !hasAll(old) || !hasAll("0-0") || !hasAll(late) || !hasAll(log[1].Cursor) {
		t.Error("complete log: got false, want true")
	}
	if err := b.Commands().XTrimMaxLen(ctx, eventlog.Key(b.Keys(), 0), 2).Err(); err != nil {
		t.Fatal(err)
	}
	if hasAll(old) || hasAll("0-0") || !hasAll(late) || !hasAll(log[1].Cursor) {
		t.Error("trimmed log: got a wrong result")
	}
	if err := b.Commands().XTrimMaxLen(ctx, eventlog.Key(b.Keys(), 0), 0).Err(); err != nil {
		t.Fatal(err)
	}
	if hasAll(old) || hasAll(log[0].Cursor) || !hasAll(log[2].Cursor) {
		t.Error("emptied log: got a wrong result")
	}
}

// A consumer that claims all pending entries receives them first, in queue order.
func TestClaimPending_KeepsOrder(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	ctx := t.Context()
	if err := b.ClaimPending(ctx, "s", "g", "sole"); err != nil {
		t.Fatalf("missing queue: %v", err)
	}
	queue := Key(b.Keys(), "s", 0)
	const n = 2500
	for i := range n {
		b.Commands().XAdd(ctx, &redis.XAddArgs{Stream: queue, Values: []any{"id", strconv.Itoa(i), "data", "{}"}})
	}
	if err := b.Commands().XGroupCreate(ctx, queue, "g", "0").Err(); err != nil {
		t.Fatal(err)
	}
	for i := range 24 { // the last hundred are not read
		read := &redis.XReadGroupArgs{
			Group: "g", Consumer: fmt.Sprint("node-", i%3), Streams: []string{queue, ">"}, Count: 100, Block: -1,
		}
		if err := b.Commands().XReadGroup(ctx, read).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.ClaimPending(ctx, "s", "g", "sole"); err != nil {
		t.Fatal(err)
	}
	s, err := subscriber.New(subscriber.Config{
		Commands: b.Commands(), Readers: b.Readers(), Group: "g", Consumer: "sole", Streams: b.streams,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	messages, err := s.Subscribe(ctx, "s")
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		m := <-messages
		if m.UUID != strconv.Itoa(i) {
			t.Fatalf("got message %s, want %d", m.UUID, i)
		}
		m.Ack()
	}
}

func TestDropNewest(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *testStores) {
		ctx, key := t.Context(), Key(b.Keys(), "s", 0)
		drop := func(count int64, atMost map[string]int64, want ...string) {
			t.Helper()
			list, err := b.DropNewest(ctx, "s", 0, count, atMost)
			if err != nil {
				t.Fatal(err)
			}
			var ids []string
			for _, n := range list {
				if n.Cursor == "" || n.Topic != "x" || n.Hub != "h" || atMost[n.Account] == 0 {
					t.Errorf("dropped %+v, want cursor, topic, hub and account", n)
				}
				ids = append(ids, n.ID)
			}
			if diff := cmp.Diff(want, ids); diff != "" {
				t.Errorf("dropped (-want +got):\n%s", diff)
			}
		}
		drop(1, map[string]int64{"a": 1})
		if err := b.Commands().XGroupCreateMkStream(ctx, key, "g", "0").Err(); err != nil {
			t.Fatal(err)
		}
		for i := range 2 * redisconn.MaxScanEntries {
			account := "a"
			if i >= 20 {
				account = "b"
			}
			values := []string{"id", strconv.Itoa(i), "topic", "x", "hub", "h", "account", account, "data", "{}"}
			if err := b.Commands().XAdd(ctx, &redis.XAddArgs{Stream: key, Values: values}).Err(); err != nil {
				t.Fatal(err)
			}
		}
		args := &redis.XReadGroupArgs{Group: "g", Consumer: "c", Streams: []string{key, ">"}, Count: 15}
		if err := b.Commands().XReadGroup(ctx, args).Err(); err != nil {
			t.Fatal(err)
		}
		drop(3, map[string]int64{"b": 2, "c": 7}, "999", "998")
		drop(3, map[string]int64{"a": 9, "b": 1}, "997", "19", "18")
		drop(9, map[string]int64{"a": 9}, "17", "16", "15") // the others have been read
		if n, err := b.Commands().XLen(ctx, key).Result(); n != 2*redisconn.MaxScanEntries-8 || err != nil {
			t.Errorf("the queue has %d entries, %v, want %d", n, err, 2*redisconn.MaxScanEntries-8)
		}
	})
}

func TestAccountSearch(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *testStores) {
		add := func(partition int, accounts ...string) {
			t.Helper()
			for part := range slices.Chunk(accounts, 500) { // a pipeline has a time limit
				_, err := b.Commands().Pipelined(t.Context(), func(p redis.Pipeliner) error {
					for _, account := range part {
						p.XAdd(t.Context(), &redis.XAddArgs{
							Stream: Key(b.Keys(), "s", partition), Values: []string{"id", "1", "account", account, "data", "{}"},
						})
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		expect := func(want bool, accounts ...string) {
			t.Helper()
			if got, err := b.NewAccountSearch("s").HasOthers(t.Context(), accounts); got != want || err != nil {
				t.Errorf("other accounts than %q: got %t, %v, want %t", accounts, got, err, want)
			}
		}
		last := b.Keys().Partitions() - 1
		expect(false)
		add(0, slices.Repeat([]string{"a", "b"}, searchPage)...) // two pages
		expect(false, "a", "b")
		expect(true, "a")
		expect(true, "c")
		add(last, "")
		expect(true, "a", "b")
		expect(false, "a", "b", "")
		add(last, "c")
		expect(true, "a", "b", "")

		// A long queue is searched in steps, even if its first entries are removed or it gets more.
		add(0, slices.Repeat([]string{"a"}, searchPage*maxSearchedPages)...)
		add(0, "d")
		search := b.NewAccountSearch("s")
		step := func(want bool, accounts ...string) {
			t.Helper()
			if got, err := search.HasOthers(t.Context(), accounts); got != want || err != nil {
				t.Errorf("other accounts than %q: got %t, %v, want %t", accounts, got, err, want)
			}
		}
		step(false, "a", "b", "c", "")
		if err := b.Commands().XTrimMaxLen(t.Context(), Key(b.Keys(), "s", 0), 10).Err(); err != nil {
			t.Fatal(err)
		}
		step(true, "a", "b", "c", "")
		step(true, "a", "b", "c", "")
		step(false, "a", "b", "c", "d", "")
		add(0, "a")
		step(false, "a", "b", "c", "d", "")
		step(true, "b", "c", "d", "") // a is no longer excluded
	})
}
