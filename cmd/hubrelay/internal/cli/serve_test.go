package cli

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
)

func TestNewLogger_WritesDurationsAsStrings(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{"json": `"pause":"1ms"`, "auto": `"pause":"1ms"`, "text": "pause=1ms"} {
		var out bytes.Buffer
		newLogger(term.Streams{Err: &out}, format, slog.LevelInfo).Info("waiting", "pause", time.Millisecond)
		if !strings.Contains(out.String(), want) {
			t.Errorf("format %s: got %s, want %s", format, out.String(), want)
		}
	}
}
