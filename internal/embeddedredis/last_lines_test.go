package embeddedredis

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/procpipe"
)

// The last lines of a server explain why it ended, even if a child process keeps the pipe open.
func TestCopyLog_KeepsLastLinesAfterDeadline(t *testing.T) {
	for _, open := range []bool{false, true} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Close(); _ = w.Close() }()
		const prefix = "1:M 01 Jan 2026 00:00:00.000 "
		text := strings.Repeat(prefix+"* Loading\n", 500) + prefix + "# Fatal error, can't open the manifest\n"
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
		if !open {
			_ = w.Close()
		}
		if err := r.SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		p := new(redisProcess)
		p.copyLog(procpipe.NewReader(r), slog.New(slog.NewTextHandler(&log, nil)))
		const want = "can't open the manifest"
		if got := p.lastLines.String(); !strings.HasSuffix(got, want) || !strings.Contains(log.String(), want) {
			t.Errorf("open %t: got last lines %q, want %q", open, got, want)
		}
	}
}
