package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

func FuzzDeadLetterContent(f *testing.F) {
	f.Add(`{"topic":"job.created"}`, `[{"error":"x"}]`, "")
	f.Add("not json", "[", `[{"id":"a","data":"{}"}]`)
	f.Add("", "null", `[{"data":"{"}]`)
	f.Fuzz(func(t *testing.T, data, attempts, notifications string) {
		c := decodeDeadLetter(
			map[string]any{"id": "d", "data": data, "attempts": attempts, "notifications": notifications},
		)
		if c.ID != "d" || len(c.Notifications) > 0 && c.Raw != "" || c.Attempts != len(c.History) {
			t.Errorf("%+v", c)
		}
	})
}

// addFields stores a dead letter with any fields, as another version or a damaged Redis may have it.
func (s *testStore) addFields(t *testing.T, id string, fields ...any) {
	t.Helper()
	key := DeadLettersKey(s.Keys(), testSink)
	at, err := s.Commands().XAdd(t.Context(), &redis.XAddArgs{Stream: key, Values: fields}).Result()
	if err == nil {
		err = s.Commands().HSet(t.Context(), DeadLetterIndexKey(s.Keys(), testSink), id, at).Err()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestDeadLetters_ListsSelection(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	for i := range 250 { // more than Redis lists at once
		d := newDelivery(fmt.Sprint(i))
		if i%100 == 10 {
			d.Notifications[0].Topic, d.Notifications[0].Hub = "job.created", "h2"
		}
		s.addDeadLetter(t, Claim{Sink: testSink}, 0, d)
	}
	special := []string{"10", "110", "210"}
	for _, c := range []struct {
		name string
		sel  Selection
		want []string
	}{
		{"topic", Selection{Topics: []string{"job.*"}}, special},
		{"hub", Selection{Hub: "h2"}, special},
		{"topic and hub", Selection{Topics: []string{"job.*"}, Hub: "h1"}, nil},
		{"limit", Selection{Hub: "h2", Limit: 2}, special[:2]},
		{"since an hour", Selection{Hub: "h2", Since: time.Now().Add(-time.Hour)}, special},
		{"since later", Selection{Since: time.Now().Add(time.Hour)}, nil},
	} {
		if got, _ := s.listDeadLetters(t, c.sel); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	if got, next := s.listDeadLetters(t, Selection{}); len(got) != DefaultPage || next == "" {
		t.Errorf("default page: got %d, next %q, want %d and a next", len(got), next, DefaultPage)
	}
	for _, newestFirst := range []bool{false, true} {
		var all []string
		for sel := (Selection{Limit: 120, NewestFirst: newestFirst, Since: time.Now().Add(-time.Hour)}); ; {
			ids, next := s.listDeadLetters(t, sel)
			all = append(all, ids...)
			if sel.After = next; next == "" {
				break
			}
		}
		if newestFirst {
			slices.Reverse(all)
		}
		if len(all) != 250 || all[0] != "0" || all[120] != "120" || all[249] != "249" {
			t.Errorf("pages, newest first %t: got %v, want 0 to 249", newestFirst, all)
		}
	}
}

// Redis runs no other command while a script reads dead letters, so large ones are read in small parts.
func TestDeadLetters_ReadsLargeOnesInParts(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	large := `{"topic":"a","object":{"error":"` + strings.Repeat("x", 200<<10) + `"}}`
	const n = 40
	for i := range n {
		d := newDelivery(fmt.Sprint(i))
		d.Notifications[0].Data = json.RawMessage(large)
		s.addDeadLetter(t, Claim{Sink: testSink}, 0, d)
	}
	f, err := (&Selection{}).compile()
	if err != nil {
		t.Fatal(err)
	}
	list, more, err := s.DeadLetters.readPage(t.Context(), testSink, &f)
	if err != nil || !more || len(list) != 10 {
		t.Errorf("one read: got %d dead letters, more %t, %v, want 10 and more", len(list), more, err)
	}
	if got, next := s.listDeadLetters(t, Selection{}); len(got) != n || next != "" {
		t.Errorf("list: got %d, next %q, want all %d", len(got), next, n)
	}
}

func TestDeadLetters_RejectsInvalidSelection(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	s.addDeadLetters(t, "a")
	for _, sel := range []Selection{
		{Topics: []string{"a b"}},
		{After: "x"},
		{After: "1"},
		{After: "1-"},
		{After: "(1-1"},
		{After: "1-1~+"},
		{After: "1-1~2-2", NewestFirst: true},
		{After: "0-0", NewestFirst: true},
	} {
		if _, err := s.DeadLetters.List(t.Context(), testSink, sel); !errors.Is(err, ErrSelection) {
			t.Errorf("List(%+v): got %v, want ErrSelection", sel, err)
		}
		if r, err := s.DeadLetters.DropSelected(t.Context(), testSink, sel); !errors.Is(err, ErrSelection) {
			t.Errorf("DropSelected(%+v): got %+v, %v, want ErrSelection", sel, r, err)
		}
	}
	if ids, _ := s.listDeadLetters(t, Selection{}); len(ids) != 1 {
		t.Errorf("got %v, want a", ids)
	}
}

func TestDeadLetters_GetReturnsContent(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	s.addDeadLetters(t, "a")
	c, err := s.DeadLetters.Get(t.Context(), testSink, "a")
	if err != nil {
		t.Fatal(err)
	}
	want := newDelivery("a").Notifications[0]
	if c.Reason != "attempts_exhausted" || c.Topic != want.Topic || c.Attempts != 1 || c.History[0].Status != 500 ||
		time.Since(c.Time) > time.Hour || c.Raw != "" {
		t.Errorf("got %+v", c)
	}
	if len(c.Notifications) != 1 || string(c.Notifications[0].Data) != string(want.Data) {
		t.Errorf("got events %+v, want data %s", c.Notifications, want.Data)
	}
	if _, err := s.DeadLetters.Get(t.Context(), testSink, "b"); !errors.Is(err, ErrNoDeadLetter) {
		t.Errorf("unknown ID: got %v, want ErrNoDeadLetter", err)
	}
	if _, err := s.DeadLetters.Get(t.Context(), "other", "a"); !errors.Is(err, ErrNoDeadLetter) {
		t.Errorf("other sink: got %v, want ErrNoDeadLetter", err)
	}
}

func TestDeadLetters_AddReplacesAndDropsOldest(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	s.addDeadLetters(t, "a", "b", "a")
	if ids, _ := s.listDeadLetters(t, Selection{}); !slices.Equal(ids, []string{"b", "a"}) {
		t.Fatalf("after a repetition: got %v, want b, a", ids)
	}
	if n, _ := s.addDeadLetter(t, Claim{Sink: testSink}, 2, newDelivery("c")); n != 1 {
		t.Errorf("got %d dropped, want 1", n)
	}
	if _, err := s.DeadLetters.Get(t.Context(), testSink, "b"); !errors.Is(err, ErrNoDeadLetter) {
		t.Errorf("oldest: got %v, want ErrNoDeadLetter", err)
	}
	for i := range 11 {
		s.addDeadLetters(t, fmt.Sprint(i))
	}
	if n, _ := s.addDeadLetter(t, Claim{Sink: testSink}, 1, newDelivery("last")); n != 10 { // few at once
		t.Errorf("got %d dropped, want 10", n)
	}
	if ids, _ := s.listDeadLetters(t, Selection{}); !slices.Equal(ids, []string{"8", "9", "10", "last"}) {
		t.Errorf("got %v, want the newest", ids)
	}
}

func TestDeadLetters_ReplayKeepsDelivery(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	two := conntest.Notifications("h1", 1, 2)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	two[0].Cursor, two[1].Cursor = "1-0", "2-0"
	for _, d := range []relay.Delivery{
		{ID: two[0].ID, Notifications: two[:1]},
		{ID: "batch of one", Notifications: two[:1], Batch: true},
		{ID: "digest of one", Notifications: two[:1], Digest: &relay.Digest{
			Count: 1, First: at, Last: at, Topics: map[string]int{"container.created": 1},
		}},
		{ID: "batch", Notifications: two, Batch: true},
		{ID: "digest", Notifications: two, Digest: &relay.Digest{
			Count: 3, First: at, Last: at.Add(time.Hour), Topics: map[string]int{"container.created": 3},
		}},
	} {
		s.addDeadLetter(t, Claim{Sink: testSink}, 0, d)
		result, err := s.DeadLetters.Replay(t.Context(), testSink, []string{d.ID, "unknown"}, ReplayOptions{})
		if want := (ChangeResult{Done: 1, Unchanged: unchanged(UnchangedMissing, "unknown")}); err != nil || !reflect.DeepEqual(result, want) {
			t.Fatalf("%s: got %+v, %v, want %+v", d.ID, result, err, want)
		}
		if _, err := s.DeadLetters.Get(t.Context(), testSink, d.ID); !errors.Is(err, ErrNoDeadLetter) {
			t.Errorf("%s: got %v, want ErrNoDeadLetter", d.ID, err)
		}
		claims := s.claim(t, time.Minute)
		if got := listClaimed(claims); !slices.Equal(got, []string{d.ID}) {
			t.Fatalf("got claims %v, want %s", got, d.ID)
		}
		r, err := DecodeRecord(claims[0].Body)
		if err != nil {
			t.Fatal(err)
		}
		if r.AttemptCount != 0 || len(r.Attempts) != 1 || r.Attempts[0].Status != 500 {
			t.Errorf("%s: got count %d, attempts %+v, want 0 and the history", d.ID, r.AttemptCount, r.Attempts)
		}
		want := NewRecord(d, time.Time{}).NextDelivery(d.ID)
		if diff := cmp.Diff(want, r.NextDelivery(d.ID)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", d.ID, diff)
		}
	}
}

func unchanged(status ChangeStatus, id string) []UnchangedDeadLetter {
	return []UnchangedDeadLetter{{id, status}}
}

func TestDeadLetters_ReplayStopsAtBacklog(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	s.schedule(t, "scheduled", "", time.Hour)
	s.addDeadLetters(t, "a", "b", "c")
	o := ReplayOptions{MaxBacklog: 2}
	r, err := s.DeadLetters.Replay(t.Context(), testSink, []string{"a", "b"}, o)
	if !errors.Is(err, ErrFull) || r.Done != 1 {
		t.Errorf("Replay: got %+v, %v, want 1 done and ErrFull", r, err)
	}
	r, err = s.DeadLetters.ReplaySelected(t.Context(), testSink, Selection{}, o)
	if !errors.Is(err, ErrFull) || r.Done != 0 {
		t.Errorf("ReplaySelected: got %+v, %v, want 0 done and ErrFull", r, err)
	}
	if ids, _ := s.listDeadLetters(t, Selection{}); !slices.Equal(ids, []string{"b", "c"}) {
		t.Errorf("got dead letters %v, want b, c", ids)
	}
	if got := listClaimed(s.claim(t, time.Minute)); !slices.Equal(got, []string{"a"}) {
		t.Errorf("got claims %v, want a", got)
	}
}

func TestDeadLetters_DropsByID(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	s.addDeadLetters(t, "a", "b", "c")
	r, err := s.DeadLetters.Drop(t.Context(), testSink, []string{"c", "unknown", "a"})
	if want := (ChangeResult{Done: 2, Unchanged: unchanged(UnchangedMissing, "unknown")}); err != nil || !reflect.DeepEqual(r, want) {
		t.Errorf("got %+v, %v, want %+v", r, err, want)
	}
	if ids, _ := s.listDeadLetters(t, Selection{}); !slices.Equal(ids, []string{"b"}) {
		t.Errorf("got %v, want b", ids)
	}
}

// Next also holds the end of the selection, so a continued change skips later dead letters.
func TestDeadLetters_DropSelectedContinues(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	s.addDeadLetters(t, "a", "b", "c", "d")
	sel := Selection{Topics: []string{"container.*"}, Limit: 2}
	r, err := s.DeadLetters.DropSelected(t.Context(), testSink, sel)
	if err != nil || r.Done != 2 || r.Next == "" {
		t.Fatalf("got %+v, %v, want 2 done and a next", r, err)
	}
	if ids, _ := s.listDeadLetters(t, Selection{}); !slices.Equal(ids, []string{"c", "d"}) {
		t.Errorf("after the first part: got %v, want c, d", ids)
	}
	s.addDeadLetters(t, "new")
	sel.After, sel.Limit = r.Next, 0
	r, err = s.DeadLetters.DropSelected(t.Context(), testSink, sel)
	if want := (ChangeResult{Done: 2}); err != nil || !reflect.DeepEqual(r, want) {
		t.Errorf("second part: got %+v, %v, want %+v", r, err, want)
	}
	if ids, _ := s.listDeadLetters(t, Selection{}); !slices.Equal(ids, []string{"new"}) {
		t.Errorf("after the second part: got %v, want new", ids)
	}
}

func TestDeadLetters_KeepUnreadableDelivery(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	d := Scheduled{ID: "a", Body: "{\n12:damaged"}
	if _, err := s.Retries.Schedule(t.Context(), testSink, d, 0, time.Now()); err != nil {
		t.Fatal(err)
	}
	c := s.claim(t, time.Minute)[0]
	entry := NewUnreadableDeadLetter(c, "unreadable", time.Now())
	if _, held, err := s.DeadLetters.Add(t.Context(), c, DeadLetterLimit{}, entry); err != nil || !held {
		t.Fatalf("got held %t, %v, want true", held, err)
	}
	got, err := s.DeadLetters.Get(t.Context(), testSink, "a")
	if err != nil || got.Raw != d.Body || len(got.Notifications) != 0 {
		t.Errorf("got %+v, %v, want raw %q", got, err, d.Body)
	}
	r, err := s.DeadLetters.ReplaySelected(t.Context(), testSink, Selection{}, ReplayOptions{})
	if want := (ChangeResult{Unchanged: unchanged(UnchangedUnreadable, "a")}); err != nil || !reflect.DeepEqual(r, want) {
		t.Errorf("replay: got %+v, %v, want %+v", r, err, want)
	}
	if ids, _ := s.listDeadLetters(t, Selection{}); !slices.Equal(ids, []string{"a"}) {
		t.Errorf("got %v, want a", ids)
	}
}

func TestDeadLetters_ReadDamagedEntries(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	s.addFields(t, "bare", "id", "bare")
	s.addFields(t, "attempts", "id", "attempts", "topic", "a.b", "data", `{"n":1}`, "attempts", "[", "time", "x")
	s.addFields(t, "data", "id", "data", "topic", "a.b", "data", "{", "attempts", `[{"error":"x"},{}]`, "digest", "[")
	for _, want := range []struct {
		id, raw                 string
		attempts, notifications int
	}{
		{"bare", "", 0, 0},
		{"attempts", "", 0, 1},
		{"data", "{", 2, 0},
	} {
		c, err := s.DeadLetters.Get(t.Context(), testSink, want.id)
		if err != nil {
			t.Fatal(err)
		}
		if c.Raw != want.raw || c.Attempts != want.attempts || len(c.Notifications) != want.notifications ||
			c.Digest != nil || !c.Time.IsZero() {
			t.Errorf("%s: got %+v, want %+v", want.id, c, want)
		}
	}
	page, err := s.DeadLetters.List(t.Context(), testSink, Selection{})
	if err != nil || len(page.Letters) != 3 {
		t.Fatalf("got %+v, %v, want 3 dead letters", page, err)
	}
	for i, want := range []int{0, 0, 2} {
		if got := page.Letters[i].Attempts; got != want {
			t.Errorf("%s: got %d attempts, want %d", page.Letters[i].ID, got, want)
		}
	}
}

// A replay without a history is better than none, but a digest cannot be sent without its counts.
func TestDeadLetters_ReplayDamagedEntries(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	s.addFields(t, "attempts", "id", "attempts", "topic", "a.b", "data", `{"n":1}`, "attempts", "[")
	s.addFields(t, "digest", "id", "digest", "topic", "a.b", "data", `{"n":1}`, "attempts", "[]", "digest", "[")
	r, err := s.DeadLetters.Replay(t.Context(), testSink, []string{"attempts", "digest"}, ReplayOptions{})
	if want := (ChangeResult{Done: 1, Unchanged: unchanged(UnchangedUnreadable, "digest")}); err != nil || !reflect.DeepEqual(r, want) {
		t.Errorf("got %+v, %v, want %+v", r, err, want)
	}
	claims := s.claim(t, time.Minute)
	if got := listClaimed(claims); !slices.Equal(got, []string{"attempts"}) {
		t.Fatalf("got claims %v, want attempts", got)
	}
	if d, err := DecodeRecord(claims[0].Body); err != nil || len(d.Notifications) != 1 || len(d.Attempts) != 0 {
		t.Errorf("got %+v, %v, want one event without history", d, err)
	}
	if ids, _ := s.listDeadLetters(t, Selection{}); !slices.Equal(ids, []string{"digest"}) {
		t.Errorf("got dead letters %v, want digest", ids)
	}
}

// Another program may trim the stream. The index then still contains the IDs.
func TestDeadLetters_MissTrimmedEntries(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	s.addDeadLetters(t, "a", "b")
	if err := s.Commands().XTrimMaxLen(t.Context(), DeadLettersKey(s.Keys(), testSink), 0).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.DeadLetters.Get(t.Context(), testSink, "a"); !errors.Is(err, ErrNoDeadLetter) {
		t.Errorf("Get: got %v, want ErrNoDeadLetter", err)
	}
	missing := ChangeResult{Unchanged: unchanged(UnchangedMissing, "a")}
	r, err := s.DeadLetters.Replay(t.Context(), testSink, []string{"a"}, ReplayOptions{})
	if err != nil || !reflect.DeepEqual(r, missing) {
		t.Errorf("Replay: got %+v, %v, want %+v", r, err, missing)
	}
	missing.Unchanged[0].ID = "b"
	if r, err = s.DeadLetters.Drop(t.Context(), testSink, []string{"b"}); err != nil || !reflect.DeepEqual(r, missing) {
		t.Errorf("Drop: got %+v, %v, want %+v", r, err, missing)
	}
	if n, err := s.Commands().Exists(t.Context(), DeadLetterIndexKey(s.Keys(), testSink)).Result(); err != nil || n != 0 {
		t.Errorf("got %d index keys, %v, want the index to be repaired", n, err)
	}
	if r := s.poll(t, PollRequest{Sink: testSink}); r.Depth != 0 {
		t.Errorf("got depth %d, want 0", r.Depth)
	}
}

// The time of the last attempt is that of its start, in lists and in the details, as in the history.
func TestDeadLetters_LastAttemptAt(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	at := time.Now().UTC().Round(time.Millisecond)
	attempted := NewRecord(newDelivery("attempted"), at)
	attempted.Attempts = append(attempted.Attempts, NewAttempt(at, 5*time.Second, errors.New("no")))
	for id, r := range map[string]*Record{"attempted": attempted, "replayed": NewRecord(newDelivery("replayed"), at)} {
		letter, err := NewDeadLetter(id, r, "exhausted", "", at.Add(5*time.Second))
		if err == nil {
			_, _, err = s.DeadLetters.Add(t.Context(), Claim{Sink: testSink, ID: id}, DeadLetterLimit{}, letter)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	page, err := s.DeadLetters.List(t.Context(), testSink, Selection{Limit: 10})
	if err != nil || len(page.Letters) != 2 {
		t.Fatalf("got %+v, %v", page, err)
	}
	for _, l := range page.Letters {
		want := map[string]time.Time{"attempted": at, "replayed": at.Add(5 * time.Second)}[l.ID]
		content, err := s.DeadLetters.Get(t.Context(), testSink, l.ID)
		if err != nil || !l.LastAttemptAt.Equal(want) || !content.LastAttemptAt.Equal(want) {
			t.Errorf("%s: got %s and %+v, %v, want %s", l.ID, l.LastAttemptAt, content, err, want)
		}
	}
}

// A dead letter that cannot be read is not taken for one that was dropped in the meantime.
func TestDeadLetters_EraseAccountReportsErrors(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	letter, err := NewDeadLetter("d", NewRecord(newDelivery("d"), time.Now()), "exhausted", "", time.Now())
	if err == nil {
		_, _, err = s.DeadLetters.Add(t.Context(), Claim{Sink: testSink, ID: "d"}, DeadLetterLimit{}, letter)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Commands().Set(t.Context(), DeadLetterIndexKey(s.Retries.keys, testSink), "damaged", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.DeadLetters.EraseAccount(t.Context(), testSink, "a", time.Now()); err == nil {
		t.Error("got no error")
	}
}
