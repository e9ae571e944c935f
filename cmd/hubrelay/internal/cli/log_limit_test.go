package cli

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
)

func TestRepeatLimiter_WarnsOncePerMinute(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	now := time.Unix(0, 0)
	limiter := newRepeatLimiter(term.NewLogHandler(&out, slog.LevelInfo, nil))
	limiter.now = func() time.Time { return now }
	log := slog.New(limiter)
	attempt := func() { log.With("url", "u").Warn("not connected") }
	for _, c := range []struct {
		name string
		log  func()
		want int // lines
	}{
		{"first attempt", attempt, 1},
		{"second attempt", attempt, 0},
		{"another warning", func() { log.Warn("skipped a message") }, 1},
		{"59 seconds later", func() { now = now.Add(59 * time.Second); attempt() }, 0},
		{"a minute later", func() { now = now.Add(time.Second); attempt() }, 1},
		{"connected", func() { log.Info("connected") }, 1},
		{"disconnected again", attempt, 1},
	} {
		out.Reset()
		c.log()
		if got := strings.Count(out.String(), "\n"); got != c.want {
			t.Errorf("%s: got %d lines, want %d: %s", c.name, got, c.want, out.String())
		}
	}
}
