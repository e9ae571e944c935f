package ingest

import (
	"testing"
	"testing/synctest"
	"time"
)

// A publisher is loud for a while after it has sent much more than others.
func TestLoudness_CountRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLoudness()
		count := func(name string, bytes int, want bool) {
			t.Helper()
			if got := l.countRequest(name, bytes, false); got != want {
				t.Errorf("%s with %d bytes: got loud %t, want %t", name, bytes, got, want)
			}
		}
		count("flood", 32<<20, false) // the only publisher
		if !l.countRequest("flood", 1, true) {
			t.Error("a publisher with events of others is not loud")
		}
		count("quiet", 500, false)
		count("flood", 1, true)
		count("small", 3<<20, false)
		time.Sleep(10 * time.Second)
		count("flood", 1, true)
		time.Sleep(20 * time.Second)
		count("flood", 1, false)
		time.Sleep(time.Hour)
		count("tiny", 1, false)
		time.Sleep(5 * time.Minute)
		l.countEvents("flood", loudBytes/eventBytes)
		count("flood", 1, true) // another account has published, although long ago
		time.Sleep(time.Hour)
		count("one", 8<<20, false)
		count("other", 8<<20, false) // publishers that send the same are not loud
		if len(l.sent) != 2 {
			t.Errorf("%d publishers have sent something, want 2", len(l.sent))
		}
	})
}
