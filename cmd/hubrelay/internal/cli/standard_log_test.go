package cli

import (
	"bytes"
	stdlog "log" //nolint:depguard // it is redirected
	"log/slog"
	"os"
	"strings"
	"testing"
)

// A destination can make net/http write any number of lines to the standard logger.
func TestRedirectStandardLog(t *testing.T) {
	defer stdlog.SetOutput(os.Stderr)
	defer stdlog.SetFlags(stdlog.Flags())
	var out bytes.Buffer
	redirectStandardLog(slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	for range 1000 {
		stdlog.Printf("unhandled frame \x1b[2J %s", strings.Repeat("x", 10_000))
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != standardLogLines || out.Len() > 10*1024 || strings.Contains(out.String(), "\x1b") ||
		!strings.Contains(lines[0], "unhandled frame") {
		t.Errorf("got %d lines, %d bytes: %.300s", len(lines), out.Len(), out.String())
	}
}
