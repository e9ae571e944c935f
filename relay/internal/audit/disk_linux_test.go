package audit

import (
	"bufio"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// Opening a FIFO without a reader blocks, like a disk that does not respond.
func TestLog_StoresWhileFileBlocks(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "audit.log")
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	store := newTestStore(t, redistest.Start(t))
	l := NewLog(Options{File: file, Log: testkit.Log(t)})
	stop := runLog(t, l, store)
	const n = 4 * batchLen
	recordMany(l, n)
	awaitStored(t, store, n)

	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	// This writer keeps the FIFO open between two writes.
	keep, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer keep.Close()
	lines := bufio.NewScanner(f)
	for i := range n {
		if !lines.Scan() {
			t.Fatalf("got %d lines, %v; want %d", i, lines.Err(), n)
		}
	}
	stop()
	f.Close()
}

func TestLog_StoresWhileDiskIsFull(t *testing.T) {
	t.Parallel()
	var log testkit.Buffer
	dropped := make(chan struct{}, 1)
	l := NewLog(Options{
		File: "/dev/full", HashChain: true, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Dropped: func() {
			select {
			case dropped <- struct{}{}:
			default:
			}
		},
	})
	store := newTestStore(t, redistest.Start(t))
	runLog(t, l, store)
	recordMany(l, queueLen)
	awaitStored(t, store, queueLen)
	recordMany(l, 2*batchLen)
	<-dropped
	testkit.WaitForValue(t, "the end of the queue", 0, func() int { return len(l.store.entries) })
	if text := log.String(); !strings.Contains(text, "no space left") || !strings.Contains(text, "output=file") ||
		strings.Contains(text, "output=redis") {
		t.Errorf("got %s", text)
	}
}
