package plugins

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// What lies in a pipe is read however late its reader comes, and no more than that.
func TestReadsBehindTheDeadline(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if _, err := io.WriteString(w, "no database\n"); err != nil {
		t.Fatal(err)
	}
	if err := r.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	late := &lastWordsReader{pipe: r}
	if text, err := io.ReadAll(iotest.OneByteReader(late)); string(text) != "no database\n" || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%q, %v while somebody holds it open", text, err)
	}
	if _, err := io.WriteString(w, "the end"); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(late); string(text) != "the end" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
}

// Somebody who writes for ever is not listened to for ever.
func TestReadsSoMuchBehindTheDeadline(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if err := r.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	late := &lastWordsReader{pipe: r}
	text := make([]byte, 4096)
	total := 0
	for {
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
		n, err := late.Read(text)
		if total += n; err != nil {
			break
		}
		if total > 2*lastMost {
			t.Fatalf("%d bytes were read", total)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if total != lastMost {
		t.Errorf("%d bytes were read, want %d", total, lastMost)
	}
}

// hesitant is a log that takes its first line only when until says so.
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

// The reason of an end is told where the daemon comes to read it long after that end.
func TestLastWordsOfThePast(t *testing.T) {
	for name, stream := range map[string]string{"standard error": ">&2", "standard output": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			read := filepath.Join(t.TempDir(), "read")
			log := new(hesitant)
			p := &process{
				cmd:    exec.Command("/bin/sh", "-c", `echo first `+stream+`; echo second `+stream+`; until [ -e "$1" ]; do sleep 0.01; done; echo no database `+stream, "sh", read),
				output: newOutput(slog.New(slog.NewTextHandler(log, nil)), func(Event) {}), exited: make(chan struct{}),
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
				for err == nil { // until the deadline is over
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
