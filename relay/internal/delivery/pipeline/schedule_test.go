package pipeline

import (
	"fmt"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// standardWebhooks returns the schedule of Standard Webhooks 1.0: ten attempts in about three days.
func standardWebhooks() Schedule {
	return Schedule{
		Delays: []time.Duration{
			5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
			10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
		},
		MaxAge: 96 * time.Hour,
	}
}

func TestSchedule_Next(t *testing.T) {
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
		{"named goes beyond the age", 1, 95 * time.Hour, 2 * time.Hour, 0.5, time.Hour, true},
		{"nonsense", 0, 0, 0, 0.5, 0, false},
	} {
		got, more := s.Next(c.attempt, c.age, c.named, c.random)
		if (got-c.want).Abs() > time.Millisecond || more != c.more {
			t.Errorf("%s: %s %v, want %s %v", c.name, got, more, c.want, c.more)
		}
	}
	if _, more := (Schedule{}).Next(1, 0, 0, 0); more {
		t.Error("the zero value has a retry")
	}
	if got, more := (Schedule{Delays: []time.Duration{time.Hour}}).Next(1, 1000*time.Hour, 0, 0.5); !more ||
		got != time.Hour {
		t.Error("the age matters without a limit")
	}
	var total time.Duration
	for i := range s.Delays {
		wait, more := s.Next(i+1, total, 0, 1)
		if !more {
			t.Errorf("attempt %d exceeds the age with maximum jitter", i+2)
		}
		total += wait
	}
}

func TestSchedule_MaxAttempts(t *testing.T) {
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
		{
			name: "more, but limited by the age", waits: waits, most: 20, want: 6, last: time.Minute,
			maxAge: 5 * time.Minute,
		},
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

func TestOptions_IsTooOld(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		age      time.Duration
		attempts int
		ordering store.Ordering
		want     bool
	}{
		"young":                    {time.Hour, 1, store.OrderingNone, false},
		"old":                      {2 * time.Hour, 1, store.OrderingNone, true},
		"postponed":                {2 * time.Hour, 0, store.OrderingNone, true},
		"ordered":                  {2 * time.Hour, 1, store.OrderingHub, true},
		"ordered, but unattempted": {2 * time.Hour, 0, store.OrderingHub, false},
	} {
		o := &Options{Schedule: Schedule{MaxAge: 90 * time.Minute}, Ordering: c.ordering, Now: func() time.Time { return now }}
		if got := o.isTooOld(&store.Record{First: now.Add(-c.age), AttemptCount: c.attempts}); got != c.want {
			t.Errorf("%s: got %t, want %t", name, got, c.want)
		}
	}
}
