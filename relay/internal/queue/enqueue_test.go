package queue

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

func readQueue(t testing.TB, b *testStores, sink string) []string {
	t.Helper()
	entries, err := b.Commands().XRange(t.Context(), Key(b.Keys(), sink, 0), "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, e := range entries {
		ids = append(ids, fmt.Sprint(e.Values["id"]))
	}
	return ids
}

// enqueueAll enqueues all entries after a position for all sinks. catchUp is the sink that catches up, or "".
func enqueueAll(t testing.TB, b *testStores, catchUp, from string, generation int64, sinks ...string) EnqueueResult {
	t.Helper()
	ns, err := b.Range(t.Context(), 0, from, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	e := EnqueueRequest{
		CatchUpSink: catchUp, From: from, To: from, Generation: generation, EntriesCovered: len(ns),
		Sinks: sinks,
	}
	for _, n := range ns {
		m := SinkMatch{ID: n.Cursor}
		for i := range sinks {
			m.Sinks = append(m.Sinks, i)
		}
		e.Matches, e.To = append(e.Matches, m), n.Cursor
	}
	r, err := b.Enqueue(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestEnqueue(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *testStores) {
		mustAppend(t, b, notifications("h", 1, 5)...)
		log := readLog(t, b, 0)
		e := EnqueueRequest{
			From: "0-0", To: log[4].Cursor, EntriesCovered: 5,
			Sinks: []string{"idle", "one", "two"},
			Matches: []SinkMatch{
				{log[0].Cursor, []int{1, 2}},
				{log[1].Cursor, []int{2}},
				{"1-1", []int{2}},
				{log[3].Cursor, []int{2}},
			},
		}
		r, err := b.Enqueue(t.Context(), e)
		if err != nil || !r.Committed || r.Position != e.To || r.Trimmed != 1 ||
			r.Lengths[0] != 0 || r.Lengths[1] != 1 || r.Lengths[2] != 3 {
			t.Fatalf("got %+v, %v, want one trimmed and one and three enqueued", r, err)
		}
		again, err := b.Enqueue(t.Context(), e)
		if err != nil || again.Committed || again.Position != e.To {
			t.Errorf("repeat: got %+v, %v, want no commit", again, err)
		}
		if got := readQueue(t, b, "one"); len(got) != 1 || got[0] != log[0].ID {
			t.Errorf("queue one: got %v, want the first entry", got)
		}
		if got := readQueue(t, b, "two"); !slices.Equal(got, []string{log[0].ID, log[1].ID, log[3].ID}) {
			t.Errorf("queue two: got %v, want the first, second and fourth entry", got)
		}
		if at, err := b.Position(t.Context(), 0); at != e.To || err != nil {
			t.Errorf("position: got %s, %v, want %s", at, err, e.To)
		}
	})
}

// The log of the new master may have grown past the entry that the node read from the old one.
func TestEnqueue_LogGrewPastEntry(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	ctx := t.Context()
	mustAppend(t, b, notifications("h", 1, 2)...)
	between, _ := streamid.ParsePosition(readLog(t, b, 0)[1].Cursor)
	last := between
	last.MS += 60_000
	between.MS += 30_000 // never stored here
	entry := &redis.XAddArgs{Stream: eventlog.Key(b.Keys(), 0), ID: last.String(), Values: []string{"id", "x"}}
	if err := b.Commands().XAdd(ctx, entry).Err(); err != nil {
		t.Fatal(err)
	}
	request := EnqueueRequest{From: "0-0", To: between.String(), EntriesCovered: 2}
	if _, err := b.Enqueue(ctx, request); err == nil {
		t.Error("enqueued up to an entry that was never stored")
	}
	request.To = last.String()
	if err := b.Commands().XDel(ctx, eventlog.Key(b.Keys(), 0), request.To).Err(); err != nil {
		t.Fatal(err)
	}
	if r, err := b.Enqueue(ctx, request); err != nil || !r.Committed {
		t.Errorf("got %+v, %v; a deleted entry must not stop the dispatcher", r, err)
	}
}

// A node that has read the log of another master must not skip the entries that this one stores next. Enqueue fails and changes nothing.
func TestEnqueue_LogOfOtherMaster(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *testStores) {
		ctx := t.Context()
		if _, err := b.RegisterSinks(ctx, 0, map[string]bool{"one": false}); err != nil {
			t.Fatal(err)
		}
		mustAppend(t, b, notifications("h", 1, 2)...)
		log := readLog(t, b, 0)
		last, _ := streamid.ParsePosition(log[1].Cursor)
		last.MS += 60_000
		for _, id := range []string{last.String(), log[1].Cursor} { // with and without the last entry
			_, err := b.Enqueue(ctx, EnqueueRequest{
				From: "0-0", To: last.String(), EntriesCovered: 3, Sinks: []string{"one"},
				Matches: []SinkMatch{{id, []int{0}}},
			})
			if err == nil {
				t.Fatal("enqueued entries that are not in the log")
			}
		}
		if at, err := b.Position(ctx, 0); at != "0-0" || err != nil {
			t.Errorf("position: got %s, %v, want 0-0", at, err)
		}
		if got := readQueue(t, b, "one"); len(got) != 0 {
			t.Errorf("queue: got %v, want nothing", got)
		}
		mustAppend(t, b, notifications("h", 3, 3)...)
		if r := enqueueAll(t, b, "", "0-0", 0, "one"); !r.Committed || len(readQueue(t, b, "one")) != 3 {
			t.Errorf("got %+v and %v, want all entries", r, readQueue(t, b, "one"))
		}
	})
}

func TestRegisterSinks_ChangedSets(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *testStores) {
		ctx := t.Context()
		serve := func(sinks map[string]bool, active, catchingUp int) DispatchState {
			t.Helper()
			s, err := b.RegisterSinks(ctx, 0, sinks)
			if err != nil || len(s.Active) != active || len(s.CatchingUp) != catchingUp {
				t.Fatalf("got state %+v, %v, want %d active and %d catching up", s, err, active, catchingUp)
			}
			return s
		}
		first := serve(map[string]bool{"a": false}, 1, 0)
		mustAppend(t, b, notifications("h", 1, 3)...)
		if r := enqueueAll(t, b, "", first.Position, first.Generation, "a"); !r.Committed {
			t.Fatalf("%+v", r)
		}
		// b begins at the end of the log, c at its start.
		joined, err := b.EnsureSinks(ctx, 0, map[string]bool{"b": false, "c": true})
		if err != nil || joined["c"] != "0-0" || joined["b"] != readLog(t, b, 0)[2].Cursor {
			t.Fatalf("got positions %v, %v", joined, err)
		}
		s := serve(map[string]bool{"a": false, "b": false, "c": true}, 2, 1)
		if r := enqueueAll(t, b, "", s.Position, first.Generation, "a"); r.Committed {
			t.Error("old generation: got a commit")
		}
		r := enqueueAll(t, b, "c", "0-0", 0, "c")
		if !r.Committed || !r.CaughtUp {
			t.Errorf("catch up: got %+v", r)
		}
		mustAppend(t, b, notifications("h", 4, 4)...)
		if r := enqueueAll(t, b, "", s.Position, s.Generation, "a", "b"); r.Committed {
			t.Error("generation from before c caught up: got a commit")
		}
		s = serve(map[string]bool{"a": false, "b": false, "c": true}, 3, 0)
		// For a while, a node with another configuration dispatches.
		old := serve(map[string]bool{"a": false}, 1, 0)
		if r := enqueueAll(t, b, "", old.Position, old.Generation, "a"); !r.Committed {
			t.Errorf("%+v", r)
		}
		s = serve(map[string]bool{"a": false, "b": false, "c": true}, 1, 2)
		for name, at := range maps.All(s.CatchingUp) {
			if r := enqueueAll(t, b, name, at, 0, name); !r.CaughtUp {
				t.Errorf("catch up of %s: got %+v", name, r)
			}
		}
		for sink, want := range map[string]int{"a": 4, "b": 1, "c": 4} {
			if got := readQueue(t, b, sink); len(got) != want {
				t.Errorf("queue %s: got %v, want %d entries", sink, got, want)
			}
		}
		if err := b.ForgetSink(ctx, 0, "c"); err != nil || len(readQueue(t, b, "c")) != 0 {
			t.Errorf("forget: got %v and a queue, want none", err)
		}
	})
}

func TestTrim_KeepsUndispatchedEntries(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *testStores) {
		ctx := t.Context()
		trim := func(history time.Duration, maxLen int64) int {
			t.Helper()
			if err := b.Trim(ctx, 0, eventlog.Retention{History: history, MaxLen: maxLen}); err != nil {
				t.Fatal(err)
			}
			return len(readLog(t, b, 0))
		}
		if n := trim(time.Millisecond, 1); n != 0 {
			t.Errorf("missing log: got %d entries", n)
		}
		mustAppend(t, b, notifications("h", 1, 500)...)
		log := readLog(t, b, 0)
		time1 := time.NewTimer(5 * time.Millisecond) // all entries are older than the history then
		<-time1.C
		if n := trim(time.Millisecond, 10); n != 500 {
			t.Errorf("before dispatching: got %d entries, want 500", n)
		}
		if lag, err := b.Lag(ctx, 0); lag != 500 || err != nil {
			t.Errorf("got lag %d, %v", lag, err)
		}
		r, err := b.Enqueue(ctx, EnqueueRequest{From: "0-0", To: log[299].Cursor, EntriesCovered: 300})
		if err != nil || !r.Committed {
			t.Fatalf("%+v, %v", r, err)
		}
		if lag, err := b.Lag(ctx, 0); lag != 200 || err != nil {
			t.Errorf("got lag %d, %v", lag, err)
		}
		if n := trim(0, 10); n < 200 || n > 300 {
			t.Errorf("by length: got %d entries, want 200 and at most one node more", n)
		}
		if n := trim(time.Millisecond, 0); n < 201 || n > 301 {
			if n != 200 { // the trim by length may have been exact
				t.Errorf("by history: got %d entries", n)
			}
		}
		if got := readLog(t, b, 0); got[len(got)-200].ID != log[300].ID {
			t.Error("an undispatched entry was trimmed")
		}
	})
}

// A sink that was detached still needs the log after its position. A dispatcher that does not know that trims nothing.
func TestDetachSinks_KeepsLog(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *testStores) {
		ctx := t.Context()
		state, err := b.RegisterSinks(ctx, 0, map[string]bool{"a": true, "b": true})
		if err != nil {
			t.Fatal(err)
		}
		mustAppend(t, b, notifications("h", 1, 200)...)
		if r := enqueueAll(t, b, "", state.Position, state.Generation, "a", "b"); !r.Committed {
			t.Fatalf("%+v", r)
		}
		log := readLog(t, b, 0)
		position := log[len(log)-1].Cursor
		detach := func(position string, generation int64) int64 {
			t.Helper()
			g, err := b.DetachSinks(ctx, 0, position, generation, []string{"b"})
			if err != nil {
				t.Fatal(err)
			}
			return g
		}
		if detach("0-0", state.Generation) != 0 || detach(position, state.Generation+1) != 0 {
			t.Error("a sink was detached with an old position or another generation")
		}
		generation := detach(position, state.Generation)
		if generation != state.Generation+1 {
			t.Fatalf("got generation %d, want %d", generation, state.Generation+1)
		}
		mustAppend(t, b, notifications("h", 201, 500)...)
		if r := enqueueAll(t, b, "", position, generation, "a"); !r.Committed {
			t.Fatalf("%+v", r)
		}
		again, err := b.RegisterSinks(ctx, 0, map[string]bool{"a": true, "b": true})
		if err != nil || again.CatchingUp["b"] != position || again.Generation != generation {
			t.Errorf("got %+v, %v, want b to catch up after %s", again, err, position)
		}
		trim := func(r eventlog.Retention) int {
			t.Helper()
			r.MaxLen, r.History = 1, time.Millisecond
			if err := b.Trim(ctx, 0, r); err != nil {
				t.Fatal(err)
			}
			return len(readLog(t, b, 0))
		}
		wait := time.NewTimer(5 * time.Millisecond) // all entries are older than the history then
		<-wait.C
		if n := trim(eventlog.Retention{Generation: state.Generation}); n != 500 {
			t.Errorf("an old dispatcher: got %d entries, want 500", n)
		}
		if n := trim(eventlog.Retention{Generation: generation, KeepAfter: position}); n < 301 || n > 401 {
			t.Errorf("got %d entries, want the 300 after the position, and at most one node more", n)
		}
		if n := trim(eventlog.Retention{Generation: generation}); n > 100 {
			t.Errorf("got %d entries, want at most one node", n)
		}
	})
}

func TestTrim_LongLog(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	for i := range 35 {
		mustAppend(t, b, notifications("h", i*1000, i*1000+999)...)
	}
	if r := enqueueAll(t, b, "", "0-0", 0); !r.Committed {
		t.Fatal(r)
	}
	log := readLog(t, b, 0)
	r, err := b.Enqueue(t.Context(), EnqueueRequest{
		From: log[9999].Cursor, To: log[len(log)-1].Cursor, EntriesCovered: len(log) - 10_000,
	})
	if err != nil || !r.Committed {
		t.Fatal(r, err)
	}
	if err := b.Trim(t.Context(), 0, eventlog.Retention{History: time.Hour, MaxLen: 500}); err != nil {
		t.Fatal(err)
	}
	if n := len(readLog(t, b, 0)); n < 500 || n > 700 {
		t.Errorf("got %d entries, want 500 to 700", n)
	}
}

// The memory of a log follows its limit, whatever the size of the entries is.
func TestTrim_MaxBytes(t *testing.T) {
	t.Parallel()
	const maxBytes = 512 << 10
	server := redistest.Start(t)
	for name, sizeOf := range map[string]func(i int) int{
		"500":        func(int) int { return 500 },
		"4000":       func(int) int { return 4000 },
		"large-last": func(i int) int { return 10 + i/1980*100_000 },
	} {
		b := open(t, server, redisconn.Options{Prefix: name})
		list := notifications("h", 1, 2000)
		for i := range list {
			list[i].Data = []byte(`{"pad":"` + strings.Repeat("x", sizeOf(i)) + `"}`)
		}
		mustAppend(t, b, list...)
		log := readLog(t, b, 0)
		if r := enqueueAll(t, b, "", "0-0", 0); !r.Committed {
			t.Fatal(r)
		}
		if err := b.Trim(t.Context(), 0, eventlog.Retention{History: time.Hour, MaxBytes: maxBytes}); err != nil {
			t.Fatal(err)
		}
		used := b.Commands().MemoryUsage(t.Context(), eventlog.Key(b.Keys(), 0), 0).Val()
		if kept := len(readLog(t, b, 0)); kept == len(log) || used > maxBytes*5/4 || used < maxBytes/4 {
			t.Errorf("entries of size %s: %d of %d kept, %d bytes, want about %d", name, kept, len(log), used,
				maxBytes)
		}
	}
}

// An entry of somebody else with thousands of fields must not stop the dispatcher, because that would stop all sinks.
func TestEnqueue_EntryWithManyFields(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	mustAppend(t, b, notifications("h", 1, 1)...)
	fields := []any{"id", "hostile", "topic", "x", "hub", "h", "account", "", "data", "{}"}
	for i := range 10_000 {
		fields = append(fields, fmt.Sprint("f", i), "x")
	}
	if err := b.Commands().XAdd(t.Context(), &redis.XAddArgs{
		Stream: eventlog.Key(b.Keys(), 0), Values: fields,
	}).Err(); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, b, notifications("h", 2, 2)...)
	if r := enqueueAll(t, b, "", "0-0", 0, "sink"); !r.Committed {
		t.Errorf("got %+v", r)
	}
	if got := readQueue(t, b, "sink"); len(got) != 3 || got[1] != "hostile" {
		t.Errorf("got %v", got)
	}
}
