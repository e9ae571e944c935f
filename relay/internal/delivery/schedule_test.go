package delivery

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// standardWebhooks is the schedule of Standard Webhooks 1.0, ten attempts over about three days.
func standardWebhooks() Schedule {
	return Schedule{
		Delays: []time.Duration{
			5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
			10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
		},
		MaxAge: 96 * time.Hour,
	}
}

func TestScheduleNext(t *testing.T) {
	t.Parallel()
	s := standardWebhooks()
	for _, c := range []struct {
		name       string
		attempt    int
		age, named time.Duration
		random     float64
		want       time.Duration
		more       bool
	}{
		{"first, in the middle", 1, 0, 0, 0.5, 5 * time.Second, true},
		{"least jitter", 2, time.Minute, 0, 0, 4 * time.Minute, true},
		{"most jitter", 2, time.Minute, 0, 1, 6 * time.Minute, true},
		{"last", 9, 60 * time.Hour, 0, 0.5, 24 * time.Hour, true},
		{"exhausted", 10, 60 * time.Hour, 0, 0.5, 0, false},
		{"named is longer", 1, 0, time.Minute, 0.5, time.Minute, true},
		{"named is shorter", 4, 0, time.Minute, 0.5, 2 * time.Hour, true},
		{"named is capped", 1, 0, 1000 * time.Hour, 0.5, 24 * time.Hour, true},
		{"named is negative", 1, 0, -time.Hour, 0.5, 5 * time.Second, true},
		{"too old", 9, 73 * time.Hour, 0, 0.5, 0, false},
		{"just not too old", 9, 72 * time.Hour, 0, 0.5, 24 * time.Hour, true},
		{"named goes beyond the age", 1, 95 * time.Hour, 2 * time.Hour, 0.5, 0, false},
		{"nonsense", 0, 0, 0, 0.5, 0, false},
	} {
		got, more := s.Next(c.attempt, c.age, c.named, c.random)
		if (got-c.want).Abs() > time.Millisecond || more != c.more {
			t.Errorf("%s: %s %v, want %s %v", c.name, got, more, c.want, c.more)
		}
	}
	if _, more := (Schedule{}).Next(1, 0, 0, 0); more {
		t.Error("the zero value tries again")
	}
	if got, more := (Schedule{Delays: []time.Duration{time.Hour}}).Next(1, 1000*time.Hour, 0, 0.5); !more || got != time.Hour {
		t.Error("without a bound the age does not matter")
	}
	var total time.Duration
	for i := range s.Delays {
		wait, more := s.Next(i+1, total, 0, 1)
		if !more {
			t.Errorf("with most jitter attempt %d is too late for the age", i+2)
		}
		total += wait
	}
}

func TestScheduleMaxAttempts(t *testing.T) {
	t.Parallel()
	waits := []time.Duration{time.Second, time.Minute}
	for _, c := range []struct {
		name         string
		waits        []time.Duration
		most, want   int
		last, maxAge time.Duration
	}{
		{name: "none", waits: waits, want: 3, last: time.Minute},
		{name: "fewer than the schedule", waits: waits, most: 2, want: 2, last: time.Second},
		{name: "one", waits: waits, most: 1, want: 1},
		{name: "as the schedule", waits: waits, most: 3, want: 3, last: time.Minute},
		{name: "more: the last wait repeats", waits: waits, most: 20, want: 20, last: time.Minute},
		{name: "more, but not beyond the age", waits: waits, most: 20, want: 6, last: time.Minute, maxAge: 5 * time.Minute},
		{name: "no waits", most: 5, want: 1},
	} {
		s := Schedule{Delays: c.waits, MaxAttempts: c.most, MaxAge: c.maxAge}
		made, age, last := 1, time.Duration(0), time.Duration(0)
		for made < 1000 {
			wait, more := s.Next(made, age, 0, 0.5)
			if !more {
				break
			}
			made, age, last = made+1, age+wait, wait
		}
		if made != c.want || last != c.last {
			t.Errorf("%s: %d attempts, the last after %s; want %d after %s", c.name, made, last, c.want, c.last)
		}
	}
}

func ExampleSchedule_Next() {
	s := Schedule{Delays: []time.Duration{5 * time.Second, 5 * time.Minute, 30 * time.Minute}, MaxAge: 96 * time.Hour}
	wait, more := s.Next(3, 6*time.Minute, 0, 0.5)
	fmt.Println(wait, more)
	// Output: 30m0s true
}

func FuzzDecodeRecord(f *testing.F) {
	r := newRecord(delivery("a"), time.UnixMilli(1_700_000_000_000))
	r.addAttempt(newAttempt(time.UnixMilli(1_700_000_000_000), time.Second, errFar))
	text, err := r.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	for _, s := range []string{
		"", "{}", "null", `{"notifications":[{}]}`, `{"made":-1,"notifications":[{}]}`, "{}\n12:0:0:0:0:0:0:", "{}\n2:{}", "{\n\"notifications\":[{}]}",
		"{}\n99999999999999999999:0:", "{}\n13:1:a1:b1:c0:0:1:", "{}\n", "{}\n:",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := decodeRecord(s)
		if err != nil {
			return
		}
		if d := r.nextDelivery("x"); len(d.Notifications) == 0 || d.Attempt < 1 {
			t.Errorf("%q became %+v", s, d)
		}
		if _, err := r.deadLetter("x", "r", "", time.Now()); err != nil {
			t.Error(err)
		}
	})
}

func TestRecordKeepsEveryByte(t *testing.T) {
	t.Parallel()
	d := delivery("a")
	r := newRecord(d, time.UnixMilli(1_700_000_000_123))
	r.addAttempt(newAttempt(time.UnixMilli(1_700_000_000_123), time.Second, errFar))
	text, err := r.encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := decodeRecord(text)
	if err != nil {
		t.Fatal(err)
	}
	got := back.nextDelivery("a")
	if got.Attempt != 2 || string(got.Notifications[0].Data) != string(d.Notifications[0].Data) ||
		got.Notifications[0].Cursor != "5-1" || !back.First.Equal(time.UnixMilli(1_700_000_000_123)) {
		t.Errorf("came back as %+v", got)
	}
	if a := back.Attempts[0]; a.Status != 500 || a.Response != errFar.Body || a.Outcome != "retry" || a.Milliseconds != 1000 {
		t.Errorf("attempt %+v", a)
	}
}

// What a former daemon has parked, or an open digest of it, is read as it was, and so is what comes back from the dead letters.
func TestRecordsInJSON(t *testing.T) {
	t.Parallel()
	one := `{"id":"n1","topic":"a.b","hub":"h1","account":"a1","cursor":"5-1","data":"{\"a\": \"\u00e9\\n\"}"}`
	want := relay.Notification{ID: "n1", Topic: "a.b", Hub: "h1", Account: "a1", Cursor: "5-1", Data: []byte(`{"a": "é\n"}`)}
	for _, text := range []string{
		`{"made":2,"attempts":[],"batch":true,"notifications":[` + one + `,` + one + `]}`,
		"{\n \"made\":2, \"batch\":true, \"notifications\":[" + one + ",\n" + one + "]}",
		`{"made":2,"attempts":[],"batch":true}` + "\n" + strings.Repeat(fmt.Sprint(len(one), ":", one), 2),
	} {
		for range 2 { // as it is, and parked again
			r, err := decodeRecord(text)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			d := r.nextDelivery("d")
			if !d.Batch || d.Attempt != 3 || !reflect.DeepEqual(d.Notifications, []relay.Notification{want, want}) {
				t.Errorf("%s became %+v", text, d)
			}
			if text, err = r.encode(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A record that ends within a notification, or goes on behind its last, is refused, and not delivered in part.
func TestGarbledRecord(t *testing.T) {
	t.Parallel()
	d := delivery("a")
	d.Batch, d.Notifications = true, append(d.Notifications, delivery("b").Notifications...)
	whole, err := newRecord(d, time.UnixMilli(1_700_000_000_123)).encode()
	if err != nil {
		t.Fatal(err)
	}
	one := newParked(d.Notifications[1])
	for cut := range len(whole) {
		r, err := decodeRecord(whole[:cut])
		if (err == nil) != (cut == len(whole)-len(one.appendTo(nil))) {
			t.Fatalf("%d of %d bytes: %v, %v", cut, len(whole), r, err)
		}
	}
	if r, err := decodeRecord(whole + "x"); err == nil {
		t.Error(r)
	}
}

func TestClip(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{{"abc", 5, "abc"}, {"abc", 2, "ab"}, {"a€b", 2, "a"}, {"a€b", 4, "a€"}, {"€", 1, ""}} {
		if got := truncate(c.in, c.n); got != c.want {
			t.Errorf("clip(%q, %d) = %q, want %q", c.in, c.n, got, c.want)
		}
	}
}
