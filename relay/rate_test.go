package relay_test

import (
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

func TestParseRate_RoundTrips(t *testing.T) {
	for _, c := range []struct {
		text     string
		interval time.Duration
		text2    string
	}{
		{"", 0, ""},
		{"10/s", 100 * time.Millisecond, "10/s"},
		{"90/m", 666666666 * time.Nanosecond, "90/m"},
		{" 1000 / h ", 3600 * time.Millisecond, "1000/h"},
		{"100000/s", 10 * time.Microsecond, "100000/s"},
	} {
		r, err := relay.ParseRate(c.text)
		if err != nil || r.Interval() != c.interval || r.String() != c.text2 || r.Limited() != (c.interval > 0) {
			t.Errorf("%q: %v every %s (%v)", c.text, r, r.Interval(), err)
		}
	}
	for _, text := range []string{"10", "/s", "10/", "10/d", "0/s", "-1/s", "100001/s", "1.5/s", "s/10", "10/s/s"} {
		if r, err := relay.ParseRate(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, r)
		}
	}
}
