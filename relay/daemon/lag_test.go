package daemon

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

func TestSinceStored(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_795_000_000_500)
	for id, want := range map[string]time.Duration{
		"1795000000000-7": 500 * time.Millisecond, "1795000009999-0": 0, "": 0, "x": 0,
	} {
		if got := sinceStored(id, now); got != want {
			t.Errorf("%q: %s, want %s", id, got, want)
		}
	}
}

// TestReadLag uses a log that was read completely, partly and not at all.
func TestReadLag(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := startDaemon(t, &fakeSink{}, server.URL(), "")
	r.publish("container.created")
	r.publish("container.created")
	b := openRedis(t, server).log
	list, err := b.Range(t.Context(), 0, "", 10)
	if err != nil || len(list) != 2 {
		t.Fatalf("got %d entries: %v", len(list), err)
	}
	read := make(readPositions, 1)
	stored := sinceStored(list[0].Cursor, time.Now())
	for at, want := range map[string]func(time.Duration) bool{
		list[1].Cursor: func(d time.Duration) bool { return d == 0 },
		list[0].Cursor: func(d time.Duration) bool { return d > 0 },
		"0-0":          func(d time.Duration) bool { return d >= stored },
	} {
		read[0].Store(&at)
		if d, ok := readLag(t.Context(), b, read, 0); !ok || !want(d) {
			t.Errorf("after %s: got lag %s, %v; the first entry is %s old", at, d, ok, stored)
		}
	}
	testkit.WaitFor(t, "the metric to say that nothing waits", func() bool {
		page := httptest.NewRecorder()
		r.app.metrics.Handler().ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
		return strings.Contains(page.Body.String(), "hubrelay_stream_lag_seconds{partition=\"0\"} 0\n")
	})
}
