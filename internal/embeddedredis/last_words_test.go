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

// Why a server has ended is told however late its output is read, also where a child holds that open.
func TestLastWordsOfThePast(t *testing.T) {
	for _, held := range []bool{false, true} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Close(); _ = w.Close() }()
		text := strings.Repeat("1:M 01 Jan 2026 00:00:00.000 * Loading\n", 500) + "1:M 01 Jan 2026 00:00:00.000 # Fatal error, can't open the manifest\n"
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
		if !held {
			_ = w.Close()
		}
		if err := r.SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		p := new(redisProcess)
		p.follow(procpipe.NewReader(r), slog.New(slog.NewTextHandler(&log, nil)))
		if !strings.HasSuffix(p.lastLines.String(), "can't open the manifest") || !strings.Contains(log.String(), "can't open the manifest") {
			t.Errorf("held open %v: %s", held, p.lastLines.String())
		}
	}
}
