package eventlog

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

func TestSince(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *testLog) {
		check := func(what string, after, wantFrom streamid.Position, wantLost bool, wantIDs ...string) {
			t.Helper()
			from, lost, list, err := b.ReadFrom(t.Context(), 0, after, 3)
			if err != nil || from != wantFrom || lost != wantLost || len(list) != len(wantIDs) {
				t.Fatalf("%s: from %s, lost %t, %d entries, %v; want %s, %t, %d", what, from, lost, len(list), err, wantFrom, wantLost, len(wantIDs))
			}
			for i := range list {
				if list[i].ID != wantIDs[i] {
					t.Errorf("%s: entry %d is %s, want %s", what, i, list[i].ID, wantIDs[i])
				}
			}
		}
		beginning := streamid.Position{}
		check("an empty log", beginning, beginning, false)
		check("a log that is gone", streamid.Position{MS: 5, Seq: 5}, beginning, true)
		mustAppend(t, b, conntest.Notifications("h", 1, 6)...)
		log := readLog(t, b, 0)
		at := func(i int) streamid.Position { return placeOf(t, log[i-1]) }
		before := func(i int) streamid.Position { return at(i).Predecessor() }
		id := func(i int) string { return log[i-1].ID }
		last := at(6)
		unproved := streamid.Position{MS: last.MS, Seq: last.Seq}
		check("in the middle", at(2), at(2), false, id(3), id(4), id(5))
		check("near the end", at(5), at(5), false, id(6))
		check("the end", last, last, false)
		check("without a proof", unproved, last, false)
		wantFrom := before(4)
		if wantFrom.Compare(at(3)) == 0 { // both came in the same millisecond
			wantFrom = at(3)
		}
		check("just before an entry", before(4), wantFrom, false, id(4), id(5), id(6))
		check("ahead of the log", streamid.Position{MS: 99999999999999}, unproved, true)
		if err := b.Commands().XTrimMaxLen(t.Context(), Key(b.Keys(), 0), 2).Err(); err != nil {
			t.Fatal(err)
		}
		check("trimmed", at(2), before(5), true, id(5), id(6))
		check("where that said to go on", before(5), before(5), false, id(5), id(6))
		if err := b.Commands().XTrimMaxLen(t.Context(), Key(b.Keys(), 0), 0).Err(); err != nil {
			t.Fatal(err)
		}
		check("the end of a log that was emptied", last, unproved, false)
		check("trimmed, and nothing left", at(2), unproved, true)
	})
}

func TestSinceFromTheBeginning(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	mustAppend(t, b, conntest.Notifications("h", 1, 3)...)
	if from, lost, list, err := b.ReadFrom(t.Context(), 0, streamid.Position{}, 10); err != nil || lost || from != (streamid.Position{}) || len(list) != 3 {
		t.Errorf("whole: %s %t %d %v", from, lost, len(list), err)
	}
	if err := b.Commands().XTrimMaxLen(t.Context(), Key(b.Keys(), 0), 1).Err(); err != nil {
		t.Fatal(err)
	}
	if from, lost, list, err := b.ReadFrom(t.Context(), 0, streamid.Position{}, 10); err != nil || !lost || len(list) != 1 || from != placeOf(t, list[0]).Predecessor() {
		t.Errorf("trimmed: %s %t %d %v", from, lost, len(list), err)
	}
}

// An entry that a restart took away is noticed, though the log goes on behind it.
func TestSinceWhereTheLogWasSetBack(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	mustAppend(t, b, conntest.Notifications("h", 1, 4)...)
	log := readLog(t, b, 0)
	if err := b.Commands().XDel(t.Context(), Key(b.Keys(), 0), log[1].Cursor, log[2].Cursor).Err(); err != nil {
		t.Fatal(err)
	}
	if from, lost, list, err := b.ReadFrom(t.Context(), 0, placeOf(t, log[1]), 10); err != nil || !lost || len(list) != 1 || list[0].ID != log[3].ID {
		t.Errorf("%s %t %v %v", from, lost, list, err)
	}
}

// A replica whose clock is behind gives the id of an entry that it never had to another one.
func TestSinceWhereAnotherEntryHasTheID(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	mustAppend(t, b, conntest.Notifications("h", 1, 3)...)
	log := readLog(t, b, 0)
	seen := placeOf(t, log[1])
	key := Key(b.Keys(), 0)
	stored, err := b.Commands().XRange(t.Context(), key, log[2].Cursor, "+").Result()
	if err == nil {
		err = b.Commands().Del(t.Context(), key).Err()
	}
	if err == nil {
		err = b.Commands().XAdd(t.Context(), &redis.XAddArgs{Stream: key, ID: log[1].Cursor, Values: stored[0].Values}).Err()
	}
	if err != nil {
		t.Fatal(err)
	}
	from, lost, list, err := b.ReadFrom(t.Context(), 0, seen, 10)
	if err != nil || !lost || from != seen.Predecessor() || len(list) != 1 || list[0].ID != log[2].ID {
		t.Errorf("%s %t %v %v", from, lost, list, err)
	}
	seen.IDHash = 0 // as cursors of before were
	if from, lost, list, err := b.ReadFrom(t.Context(), 0, seen, 10); err != nil || lost || from.Compare(seen) != 0 || len(list) != 0 {
		t.Errorf("without a proof: %s %t %v %v", from, lost, list, err)
	}
}

// placeOf is where a notification of the log is.
func placeOf(t *testing.T, n relay.Notification) streamid.Position {
	t.Helper()
	at, ok := streamid.ParseEntry(n.Cursor, n.ID)
	if !ok {
		t.Fatalf("%q is no stream id", n.Cursor)
	}
	return at
}
