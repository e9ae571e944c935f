package backbone

import (
	"testing"

	"github.com/hubrelay/hubrelay/relay/backbone/redistest"
)

func TestSince(t *testing.T) {
	onBoth(t, func(t *testing.T, b *Backbone) {
		check := func(what, after, wantFrom string, wantLost bool, wantIDs ...string) {
			t.Helper()
			from, lost, list, err := b.Since(t.Context(), 0, after, 3)
			if err != nil || from != wantFrom || lost != wantLost || len(list) != len(wantIDs) {
				t.Fatalf("%s: from %s, lost %t, %d entries, %v; want %s, %t, %d", what, from, lost, len(list), err, wantFrom, wantLost, len(wantIDs))
			}
			for i := range list {
				if list[i].ID != wantIDs[i] {
					t.Errorf("%s: entry %d is %s, want %s", what, i, list[i].ID, wantIDs[i])
				}
			}
		}
		check("an empty log", begin, begin, false)
		check("a log that is gone", "5-5", begin, true)
		mustAppend(t, b, notes("h", 1, 6)...)
		log := logOf(t, b, 0)
		at := func(i int) string { return log[i-1].Cursor }
		id := func(i int) string { return log[i-1].ID }
		last := at(6)
		check("in the middle", at(2), at(2), false, id(3), id(4), id(5))
		check("near the end", at(5), at(5), false, id(6))
		check("the end", last, last, false)
		check("just before an entry", justBefore(at(4)), justBefore(at(4)), false, id(4), id(5), id(6))
		check("ahead of the log", "99999999999999-0", last, true)
		if err := b.Commands().XTrimMaxLen(t.Context(), b.keys.Log(0), 2).Err(); err != nil {
			t.Fatal(err)
		}
		check("trimmed", at(2), justBefore(at(5)), true, id(5), id(6))
		check("where that said to go on", justBefore(at(5)), justBefore(at(5)), false, id(5), id(6))
		if err := b.Commands().XTrimMaxLen(t.Context(), b.keys.Log(0), 0).Err(); err != nil {
			t.Fatal(err)
		}
		check("the end of a log that was emptied", last, last, false)
		check("trimmed, and nothing left", at(2), last, true)
	})
}

func TestSinceFromTheBeginning(t *testing.T) {
	b := open(t, redistest.Start(t), Options{})
	mustAppend(t, b, notes("h", 1, 3)...)
	if from, lost, list, err := b.Since(t.Context(), 0, begin, 10); err != nil || lost || from != begin || len(list) != 3 {
		t.Errorf("whole: %s %t %d %v", from, lost, len(list), err)
	}
	if err := b.Commands().XTrimMaxLen(t.Context(), b.keys.Log(0), 1).Err(); err != nil {
		t.Fatal(err)
	}
	if from, lost, list, err := b.Since(t.Context(), 0, begin, 10); err != nil || !lost || len(list) != 1 || from != justBefore(list[0].Cursor) {
		t.Errorf("trimmed: %s %t %d %v", from, lost, len(list), err)
	}
}

// An entry that a restart took away is noticed, though the log goes on behind it.
func TestSinceWhereTheLogWasSetBack(t *testing.T) {
	b := open(t, redistest.Start(t), Options{})
	mustAppend(t, b, notes("h", 1, 4)...)
	log := logOf(t, b, 0)
	if err := b.Commands().XDel(t.Context(), b.keys.Log(0), log[1].Cursor, log[2].Cursor).Err(); err != nil {
		t.Fatal(err)
	}
	if from, lost, list, err := b.Since(t.Context(), 0, log[1].Cursor, 10); err != nil || !lost || len(list) != 1 || list[0].ID != log[3].ID {
		t.Errorf("%s %t %v %v", from, lost, list, err)
	}
}
