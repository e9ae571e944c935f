package eventlog

import (
	"context"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

func TestAge(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_795_000_000_500)
	for id, want := range map[string]time.Duration{
		"1795000000000-7": 500 * time.Millisecond, "1795000009999-0": 0, "": 0, "x": 0,
	} {
		if got := Age(id, now); got != want {
			t.Errorf("%q: got %s, want %s", id, got, want)
		}
	}
}

// TestWatchLag uses a partition that was read completely, partly and not at all.
func TestWatchLag(t *testing.T) {
	t.Parallel()
	l := open(t, redistest.Start(t), redisconn.Options{})
	mustAppend(t, l, notification("a", 1))
	mustAppend(t, l, notification("a", 2))
	list := readLog(t, l, 0)
	if len(list) != 2 {
		t.Fatalf("got %d entries, want 2", len(list))
	}
	oldest := Age(list[0].Cursor, time.Now())
	for position, want := range map[string]func(time.Duration) bool{
		list[1].Cursor: func(d time.Duration) bool { return d == 0 },
		list[0].Cursor: func(d time.Duration) bool { return d >= 0 },
		"0-0":          func(d time.Duration) bool { return d >= oldest },
	} {
		read := make(ReadPositions, 1)
		read.Set(0, position)
		ctx, cancel := context.WithCancel(t.Context())
		lag := time.Duration(-1)
		if err := l.WatchLag(ctx, read, func(_ int, d time.Duration) { lag = d; cancel() }); err != nil {
			t.Error(err)
		}
		if !want(lag) || lag < 0 {
			t.Errorf("read to %s: got lag %s; the first entry is %s old", position, lag, oldest)
		}
	}
}
