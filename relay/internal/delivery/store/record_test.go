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
		a.DurationMS != 1000 {
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

// The halves of a digest count what they list. A stand-in counts the notifications that the digest does not list.
func TestRecord_HalvesKeepUnlisted(t *testing.T) {
	t.Parallel()
	topics := map[string]int{"listed": 2}
	for i := range 50 {
		topics[fmt.Sprint("t", i)] = 1
	}
	for name, tt := range map[string]struct {
		digest relay.Digest
		listed int
		want   []int
	}{
		"many topics":    {relay.Digest{Count: 52, Topics: topics}, 2, []int{1, 1, 50}},
		"one topic":      {relay.Digest{Count: 12, Topics: map[string]int{"listed": 12}}, 2, []int{1, 1, 10}},
		"nothing else":   {relay.Digest{Count: 2, Topics: map[string]int{"listed": 2}}, 2, []int{1, 1}},
		"no topics":      {relay.Digest{Count: 2}, 2, []int{1, 1}},
		"one is listed":  {relay.Digest{Count: 12, Topics: map[string]int{"listed": 12}}, 1, []int{1, 11}},
		"of one account": {relay.Digest{Count: 3, Topics: map[string]int{"listed": 3}, Shared: map[string]string{"account": "x"}}, 1, []int{1, 2}},
	} {
		r := Record{Digest: &tt.digest, Notifications: []Notification{{ID: "a", Topic: "listed"}, {ID: "b", Topic: "listed"}}[:tt.listed]}
		r.Attempts = []Attempt{{Status: 400, Response: "it repeats another part"}}
		if !r.CanSplit() || r.HasSeveralAccounts() != (len(tt.want) > tt.listed && name != "of one account") {
			t.Errorf("%s: CanSplit is %v, HasSeveralAccounts is %v", name, r.CanSplit(), r.HasSeveralAccounts())
		}
		var got []int
		for _, part := range r.Halves() {
			got = append(got, part.Digest.Count)
			if part.CanSplit() || part.HasSeveralAccounts() && !part.IsStandIn {
				t.Errorf("%s: the part %+v can be split again", name, part)
			}
			if part.Attempts[0].Response != "" || part.Attempts[0].Status != 400 {
				t.Errorf("%s: got attempt %+v, want it without the response", name, part.Attempts[0])
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got parts of %v events, want %v", name, got, tt.want)
		}
	}
}

// The parts of a digest by account keep the number of attempts. Another one counts the notifications that it does not list.
func TestRecord_SplitByAccount(t *testing.T) {
	t.Parallel()
	r := Record{AttemptCount: 3, Digest: &relay.Digest{Count: 41, Topics: map[string]int{"a": 30, "b": 11}}}
	for i, account := range []string{"x", "y", "x", "z"} {
		r.Notifications = append(r.Notifications, Notification{ID: fmt.Sprint(i), Topic: "a", Account: account})
	}
	parts := r.SplitByAccount()
	var got []string
	topics := map[string]int{}
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
		if sum != part.Digest.Count || part.AttemptCount != 3 && !part.IsStandIn {
			t.Errorf("got %+v after %d attempts, want the topics of %d events after 3", part.Digest, part.AttemptCount, sum)
		}
	}
	standIn := parts[len(parts)-1]
	if want := []string{"02", "1", "3"}; !slices.Equal(got[:3], want) || len(got) != 4 {
		t.Errorf("got parts %q, want %q and a stand-in", got, want)
	}
	if !maps.Equal(topics, r.Digest.Topics) || standIn.Digest.Count != 37 || standIn.AttemptCount != 0 || !standIn.IsStandIn {
		t.Errorf("got topics %v, want %v; the last part is %+v", topics, r.Digest.Topics, standIn)
	}
	r = Record{Notifications: r.Notifications[:1]}
	if r.HasSeveralAccounts() {
		t.Error("one notification has several accounts")
	}
}
