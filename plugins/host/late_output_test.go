package host

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/redact"
)

// hesitant is a log that delays its first line until the channel is closed.
type hesitant struct {
	bytes.Buffer
	until func()
}

func (h *hesitant) Write(text []byte) (int, error) {
	if h.until != nil {
		h.until()
		h.until = nil
	}
	return h.Buffer.Write(text)
}

// The reason of an exit is found even if the daemon reads it long after the exit.
func TestPluginProcess_LogsOutputReadAfterExit(t *testing.T) {
	t.Parallel()
	for name, stream := range map[string]string{"standard error": ">&2", "standard output": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			read := filepath.Join(t.TempDir(), "read")
			log := new(hesitant)
			p := &pluginProcess{
				cmd: exec.Command("/bin/sh", "-c",
					`echo first `+stream+`; echo second `+stream+`; until [ -e "$1" ]; do sleep 0.01; done; echo no `+
						`database `+stream,
					"sh", read),
				output: newOutput(slog.New(slog.NewTextHandler(log, nil)), redact.Secrets{}, func(Event) {}), exited: make(chan struct{}),
			}
			log.until = func() {
				if err := os.WriteFile(read, nil, 0o600); err != nil {
					t.Error(err)
				}
				pipe := p.stderr
				if stream == "" {
					pipe = p.stdout
				}
				conn, err := pipe.SyscallConn()
				for err == nil { // until the deadline
					err = conn.Read(func(uintptr) bool { return true })
					time.Sleep(time.Millisecond)
				}
			}
			if err := p.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = io.Copy(io.Discard, p.handshake) }()
			<-p.exited
			if !strings.Contains(log.String(), "no database") {
				t.Errorf("only this was logged:\n%s", log.String())
			}
		})
	}
}
