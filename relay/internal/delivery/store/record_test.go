package store

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

var errServer = &relay.ResponseError{Status: 500, Body: "s3rver error <€>"}

func newDelivery(id string) relay.Delivery {
	return relay.Delivery{ID: id, Attempt: 1, Notifications: []relay.Notification{{
		ID: id, Topic: "container.error", Hub: "h1", Account: "a1", Cursor: "5-1",
		Data: []byte(`{"topic" : "container.error","n":12345678901234567890,"s":"<€&>\u2028"}`),
	}}}
}

func FuzzDecodeRecord(f *testing.F) {
	r := NewRecord(newDelivery("a"), time.UnixMilli(1_700_000_000_000))
	r.AddAttempt(NewAttempt(time.UnixMilli(1_700_000_000_000), time.Second, errServer))
	text, err := r.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	for _, s := range []string{
		"", "{}", "null", `{"notifications":[{}]}`, `{"made":-1,"notifications":[{}]}`,
		"{}\n12:0:0:0:0:0:0:", "{}\n2:{}", "{\n\"notifications\":[{}]}",
		"{}\n99999999999999999999:0:", "{}\n13:1:a1:b1:c0:0:1:", "{}\n", "{}\n:",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := DecodeRecord(s)
		if err != nil {
			return
		}
		if d := r.NextDelivery("x"); len(d.Notifications) == 0 || d.Attempt < 1 {
			t.Errorf("%q became %+v", s, d)
		}
		if _, err := NewDeadLetter("x", r, "r", "", time.Now()); err != nil {
			t.Error(err)
		}
	})
}

func TestRecord_KeepsEveryByte(t *testing.T) {
	t.Parallel()
	d := newDelivery("a")
	r := NewRecord(d, time.UnixMilli(1_700_000_000_123))
	r.AddAttempt(NewAttempt(time.UnixMilli(1_700_000_000_123), time.Second, errServer))
	text, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := DecodeRecord(text)
	if err != nil {
		t.Fatal(err)
	}
	got := back.NextDelivery("a")
	if got.Attempt != 2 || string(got.Notifications[0].Data) != string(d.Notifications[0].Data) ||
		got.Notifications[0].Cursor != "5-1" || !back.First.Equal(time.UnixMilli(1_700_000_000_123)) {
		t.Errorf("came back as %+v", got)
	}
	if a := back.Attempts[0]; a.Status != 500 || a.Response != errServer.Body || a.Outcome != "retry" ||
		a.Milliseconds != 1000 {
		t.Errorf("attempt %+v", a)
	}
}

// A replayed dead letter is JSON on one line.
func TestDecodeRecord_JSON(t *testing.T) {
	t.Parallel()
	one := `{"id":"n1","topic":"a.b","hub":"h1","account":"a1","cursor":"5-1","data":"{\"a\": \"\u00e9\\n\"}"}`
	want := relay.Notification{
		ID:      "n1",
		Topic:   "a.b",
		Hub:     "h1",
		Account: "a1",
		Cursor:  "5-1",
		Data:    []byte(`{"a": "é\n"}`),
	}
	text := `{"made":2,"attempts":[],"batch":true,"notifications":[` + one + `,` + one + `]}`
	for range 2 { // unchanged, and encoded again
		r, err := DecodeRecord(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		d := r.NextDelivery("d")
		if !d.Batch || d.Attempt != 3 || !reflect.DeepEqual(d.Notifications, []relay.Notification{want, want}) {
			t.Errorf("DecodeRecord(%s): got %+v", text, d)
		}
		if text, err = r.Encode(); err != nil {
			t.Fatal(err)
		}
	}
}

// A truncated record, or one with extra data, is rejected completely.
func TestDecodeRecord_Malformed(t *testing.T) {
	t.Parallel()
	d := newDelivery("a")
	d.Batch, d.Notifications = true, append(d.Notifications, newDelivery("b").Notifications...)
	whole, err := NewRecord(d, time.UnixMilli(1_700_000_000_123)).Encode()
	if err != nil {
		t.Fatal(err)
	}
	one := newNotification(d.Notifications[1])
	for cut := range len(whole) {
		r, err := DecodeRecord(whole[:cut])
		if (err == nil) != (cut == len(whole)-len(one.appendTo(nil))) {
			t.Fatalf("%d of %d bytes: %v, %v", cut, len(whole), r, err)
		}
	}
	if r, err := DecodeRecord(whole + "x"); err == nil {
		t.Error(r)
	}
}

func TestTruncate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{{"abc", 5, "abc"}, {"abc", 2, "ab"}, {"a€b", 2, "a"}, {"a€b", 4, "a€"}, {"€", 1, ""}} {
		if got := Truncate(c.in, c.n); got != c.want {
			t.Errorf("Truncate(%q, %d) = %q, want %q", c.in, c.n, got, c.want)
		}
	}
}

// The halves of a digest share the notifications that it does not list, also if each topic has only one of them.
func TestRecord_HalvesShareUnlisted(t *testing.T) {
	t.Parallel()
	topics := map[string]int{"listed": 2}
	for i := range 50 {
		topics[fmt.Sprint("t", i)] = 1
	}
	for name, tt := range map[string]struct {
		digest    relay.Digest
		want, all int
	}{
		"many topics": {relay.Digest{Count: 52, Topics: topics}, 26, 52},
		"one topic":   {relay.Digest{Count: 12, Topics: map[string]int{"listed": 12}}, 6, 12},
		"no topics":   {relay.Digest{Count: 2}, 1, 2},
	} {
		r := Record{Digest: &tt.digest, Notifications: []Notification{{ID: "a", Topic: "listed"}, {ID: "b", Topic: "listed"}}}
		halves := r.Halves()
		first, second := halves[0].Digest, halves[1].Digest
		if first.Count != tt.want || first.Count+second.Count != tt.all {
			t.Errorf("%s: got %d and %d, want %d of %d in the first half", name, first.Count, second.Count, tt.want, tt.all)
		}
		for topic, n := range tt.digest.Topics {
			if got := first.Topics[topic] + second.Topics[topic]; got != n {
				t.Errorf("%s: the halves have %d of topic %s, want %d", name, got, topic, n)
			}
		}
	}
}

// The parts of a digest by account share the notifications that it does not list, and keep the number of attempts.
func TestRecord_SplitByAccount(t *testing.T) {
	t.Parallel()
	r := Record{AttemptCount: 3, Digest: &relay.Digest{Count: 41, Topics: map[string]int{"a": 30, "b": 11}}}
	for i, account := range []string{"x", "y", "x", "z"} {
		r.Notifications = append(r.Notifications, Notification{ID: fmt.Sprint(i), Topic: "a", Account: account})
	}
	parts := r.SplitByAccount()
	var got []string
	count, topics := 0, map[string]int{}
	for _, part := range parts {
		ids := ""
		for _, n := range part.Notifications {
			ids += n.ID
		}
		got = append(got, ids)
		sum := 0
		for topic, n := range part.Digest.Topics {
			topics[topic] += n
			sum += n
		}
		if sum != part.Digest.Count || part.AttemptCount != 3 {
			t.Errorf("got %+v after %d attempts, want the topics of %d events after 3", part.Digest, part.AttemptCount, sum)
		}
		count += sum
	}
	if want := []string{"02", "1", "3"}; !slices.Equal(got, want) {
		t.Errorf("got parts %q, want %q", got, want)
	}
	if first := parts[0].Digest.Count; count != 41 || !maps.Equal(topics, r.Digest.Topics) || first < 19 || first > 21 {
		t.Errorf("got %d events of %v, and %d in the first part; want 41 of %v, and a half", count, topics, first, r.Digest.Topics)
	}
	if r.Notifications = r.Notifications[:1]; r.HasSeveralAccounts() {
		t.Error("one notification has several accounts")
	}
}
