package term

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestLogHandler_WritesOneLinePerRecord(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(NewLogHandler(&out, slog.LevelInfo, nil))
	log.Debug("hidden")
	log.With("sink", "billing").WithGroup("retry").Warn("first\nsecond\x1b[2J", "in", 1500*time.Millisecond,
		"error", errors.New("line 1\nline 2\x1b[2J"), "reason", "two words")
	got := out.String()
	if strings.Count(got, "\n") != 1 || strings.Contains(got, "\x1b") {
		t.Errorf("got %q, want one line without control characters", got)
	}
	for _, want := range []string{
		"WRN first", "sink=billing", "retry.in=1.5s", `retry.error="line 1\nline 2"`,
		`retry.reason="two words"`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got %q, want it to contain %q", got, want)
		}
	}
}
