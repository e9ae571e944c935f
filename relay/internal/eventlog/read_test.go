package eventlog

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

func TestReadFrom(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *testLog) {
		check := func(name string, after, wantFrom streamid.Position, wantLost bool, wantIDs ...string) {
			t.Helper()
			from, lost, list, err := b.ReadFrom(t.Context(), 0, after, 3)
			if err != nil || from != wantFrom || lost != wantLost || len(list) != len(wantIDs) {
				t.Fatalf("%s: got from %s, lost %t, %d entries, %v; want %s, %t, %d",
					name, from, lost, len(list), err, wantFrom, wantLost, len(wantIDs))
			}
			for i := range list {
				if list[i].ID != wantIDs[i] {
					t.Errorf("%s: entry %d: got ID %s, want %s", name, i, list[i].ID, wantIDs[i])
				}
			}
		}
		beginning := streamid.Position{}
		check("empty log", beginning, beginning, false)
		check("missing log", streamid.Position{MS: 5, Seq: 5}, beginning, true)
		mustAppend(t, b, notifications("h", 1, 6)...)
		log := readLog(t, b, 0)
		at := func(i int) streamid.Position { return positionOf(t, log[i-1]) }
		before := func(i int) streamid.Position { return at(i).Predecessor() }
		id := func(i int) string { return log[i-1].ID }
		last := at(6)
		withoutHash := streamid.Position{MS: last.MS, Seq: last.Seq}
		check("middle", at(2), at(2), false, id(3), id(4), id(5))
		check("near the end", at(5), at(5), false, id(6))
		check("end", last, last, false)
		check("without a hash", withoutHash, last, false)
		wantFrom := before(4)
		if wantFrom.Compare(at(3)) == 0 { // both have the same millisecond
			wantFrom = at(3)
		}
		check("just before an entry", before(4), wantFrom, false, id(4), id(5), id(6))
		check("after the log", streamid.Position{MS: 99999999999999}, withoutHash, true)
		if err := b.Commands().XTrimMaxLen(t.Context(), Key(b.Keys(), 0), 2).Err(); err != nil {
			t.Fatal(err)
		}
		check("trimmed", at(2), before(5), true, id(5), id(6))
		check("position that a loss returned", before(5), before(5), false, id(5), id(6))
		if err := b.Commands().XTrimMaxLen(t.Context(), Key(b.Keys(), 0), 0).Err(); err != nil {
			t.Fatal(err)
		}
		check("end of an emptied log", last, withoutHash, false)
		check("trimmed to nothing", at(2), withoutHash, true)
	})
}

func TestReadFrom_Beginning(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	mustAppend(t, b, notifications("h", 1, 3)...)
	start := streamid.Position{}
	from, lost, list, err := b.ReadFrom(t.Context(), 0, start, 10)
	if err != nil || lost || from != start || len(list) != 3 {
		t.Errorf("complete log: got %s, %t, %d entries, %v", from, lost, len(list), err)
	}
	if err := b.Commands().XTrimMaxLen(t.Context(), Key(b.Keys(), 0), 1).Err(); err != nil {
		t.Fatal(err)
	}
	from, lost, list, err = b.ReadFrom(t.Context(), 0, start, 10)
	if err != nil || !lost || len(list) != 1 || from != positionOf(t, list[0]).Predecessor() {
		t.Errorf("trimmed log: got %s, %t, %d entries, %v", from, lost, len(list), err)
	}
}

// A loss is detected even if the log has later entries.
func TestReadFrom_DeletedEntries(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	mustAppend(t, b, notifications("h", 1, 4)...)
	log := readLog(t, b, 0)
	if err := b.Commands().XDel(t.Context(), Key(b.Keys(), 0), log[1].Cursor, log[2].Cursor).Err(); err != nil {
		t.Fatal(err)
	}
	from, lost, list, err := b.ReadFrom(t.Context(), 0, positionOf(t, log[1]), 10)
	if err != nil || !lost || len(list) != 1 || list[0].ID != log[3].ID {
		t.Errorf("got %s, %t, %v, %v, want a loss and entry %s", from, lost, list, err, log[3].ID)
	}
}

// A promoted replica with a slow clock may use the ID of a lost entry again.
func TestReadFrom_ReusedID(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	mustAppend(t, b, notifications("h", 1, 3)...)
	log := readLog(t, b, 0)
	seen := positionOf(t, log[1])
	key := Key(b.Keys(), 0)
	stored, err := b.Commands().XRange(t.Context(), key, log[2].Cursor, "+").Result()
	if err == nil {
		err = b.Commands().Del(t.Context(), key).Err()
	}
	if err == nil {
		add := redis.XAddArgs{Stream: key, ID: log[1].Cursor, Values: stored[0].Values}
		err = b.Commands().XAdd(t.Context(), &add).Err()
	}
	if err != nil {
		t.Fatal(err)
	}
	from, lost, list, err := b.ReadFrom(t.Context(), 0, seen, 10)
	if err != nil || !lost || from != seen.Predecessor() || len(list) != 1 || list[0].ID != log[2].ID {
		t.Errorf("got %s, %t, %v, %v, want a loss and entry %s", from, lost, list, err, log[2].ID)
	}
	seen.IDHash = 0 // as in old cursors
	from, lost, list, err = b.ReadFrom(t.Context(), 0, seen, 10)
	if err != nil || lost || from.Compare(seen) != 0 || len(list) != 0 {
		t.Errorf("without a hash: got %s, %t, %v, %v, want no loss and no entries", from, lost, list, err)
	}
}

// positionOf returns the position of a notification of the log.
func positionOf(t *testing.T, n relay.Notification) streamid.Position {
	t.Helper()
	at, ok := streamid.ParseEntry(n.Cursor, n.ID)
	if !ok {
		t.Fatalf("cursor %q is no stream ID", n.Cursor)
	}
	return at
}

// FindNear finds an entry by its ID, also if it was stored earlier or later than its ID says.
func TestFindNear(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, l *testLog) {
		for i := range 3 {
			mustAppend(t, l, notifications("h", 1000*i, 1000*i+999)...)
		}
		stored := readLog(t, l, 0)[2345]
		id := stored.ID
		position, _ := streamid.ParsePosition(stored.Cursor)
		now := time.UnixMilli(int64(position.MS))
		for _, at := range []time.Time{now, now.Add(10 * time.Second), now.Add(-10 * time.Second)} {
			e, partition, found, err := l.FindNear(t.Context(), id, at)
			if err != nil || !found || e.ID != id || partition != 0 || e.Cursor == "" {
				t.Errorf("%s: got %+v, %t, %v", at.Sub(now), e, found, err)
			}
		}
		if _, _, found, err := l.FindNear(t.Context(), "missing", now); found || err != nil {
			t.Errorf("a missing entry: got %t, %v", found, err)
		}
		if _, _, found, err := l.FindNear(t.Context(), id, now.Add(time.Hour)); found || err != nil {
			t.Errorf("at another time: got %t, %v", found, err)
		}
	})
}

// Redis builds a reply in its memory, so a search reads few large entries at once.
func TestReadBefore_AdaptsToSize(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	var list []relay.Notification
	for i := range 200 {
		n := notification("h", i)
		n.Data = bytes.Repeat([]byte("x"), 200_000)
		list = append(list, n)
	}
	for chunk := range slices.Chunk(list, 20) {
		if _, err := b.Append(t.Context(), AppendRequest{Hub: "h", Notifications: chunk}); err != nil {
			t.Fatal(err)
		}
	}
	found, reads := 0, 0
	for end := "+"; ; reads++ {
		page, err := b.ReadBefore(t.Context(), 0, end, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		if reads > 0 && len(page) > 12 {
			t.Errorf("read %d has %d entries of 200 KB, want at most 12", reads, len(page))
		}
		found += len(page)
		end = "(" + page[len(page)-1].Cursor
	}
	if found != len(list) {
		t.Errorf("got %d entries, want %d", found, len(list))
	}
}

// Redis searches the whole log for an XREVRANGE that ends before the first entry. A client chooses the time.
func TestReadBefore_BeforeFirstEntry(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	mustAppend(t, b, notification("h", 1))
	page, err := b.ReadBefore(t.Context(), 0, "+", 10)
	if err != nil || len(page) != 1 {
		t.Fatalf("got %d entries and error %v", len(page), err)
	}
	first := page[0].Cursor
	at, _ := streamid.ParsePosition(first)
	stored := time.UnixMilli(int64(at.MS))
	if got, err := b.PositionsBefore(t.Context(), 0, 1, stored.Add(time.Millisecond)); err != nil || got[0].String() != first {
		t.Errorf("got position %v and error %v, want that of the entry", got, err)
	}
	if err := b.Commands().ConfigResetStat(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if page, err = b.ReadBefore(t.Context(), 0, "("+first, 10); err != nil || len(page) != 0 {
		t.Errorf("got %d entries and error %v before the first one", len(page), err)
	}
	if got, err := b.PositionsBefore(t.Context(), 0, 1, stored); err != nil || got[0] != (streamid.Position{}) {
		t.Errorf("got position %v and error %v before the first entry", got, err)
	}
	if stats, err := b.Commands().Info(t.Context(), "commandstats").Result(); err != nil || strings.Contains(stats, "xrevrange") {
		t.Errorf("Redis searched the log backwards (error %v):\n%s", err, stats)
	}
}
