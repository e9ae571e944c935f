package audit

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// blockedStore does not respond.
type blockedStore struct{}

func (blockedStore) Append(ctx context.Context, _ [][]byte) error {
	<-ctx.Done()
	return ctx.Err()
}

func (s *memoryStore) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.lines)
}

func newTestStore(t *testing.T, server *redistest.Server) *Store {
	t.Helper()
	return NewStore(openRedis(t, server), 100_000)
}

// runLog runs a log until stop or the end of the test.
func runLog(t *testing.T, l *Log, store Appender) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var both sync.WaitGroup
	both.Go(func() { _ = l.RunFile(ctx) })
	both.Go(func() { _ = l.RunStore(ctx, store) })
	stop = func() {
		cancel()
		both.Wait()
	}
	t.Cleanup(stop)
	return stop
}

func recordMany(l *Log, n int) {
	for i := range n {
		l.Record(Entry{Actor: "admin alice", Action: "sinks.pause", Target: strconv.Itoa(i), Result: ResultOK})
	}
}

func fileLines(t *testing.T, file string) int {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return bytes.Count(text, []byte("\n"))
}

func awaitStored(t *testing.T, s *Store, want int) {
	t.Helper()
	testkit.Eventually(t, "the entries in Redis", func() error {
		list, _, err := s.Search(t.Context(), Filter{Limit: 100_000})
		targets := make(map[string]bool)
		for _, e := range list {
			targets[e.Target] = true
		}
		if err != nil || len(targets) != want {
			return fmt.Errorf("got %d entries, %w; want %d", len(targets), err, want)
		}
		return nil
	})
}

func TestLog_WritesFileWhileStoreBlocks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.log")
	synctest.Test(t, func(t *testing.T) {
		l := NewLog(Options{File: file, Log: testkit.Log(t)})
		stop := runLog(t, l, blockedStore{})
		const n = 4 * batchLen
		recordMany(l, 1)
		synctest.Wait() // the store blocks
		recordMany(l, n-1)
		time.Sleep(time.Second)
		if got := fileLines(t, file); got != n {
			t.Errorf("got %d lines, want %d", got, n)
		}
		stop()
	})
}

func TestLog_WritesFileWhileRedisHangs(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := newTestStore(t, server)
	file := filepath.Join(t.TempDir(), "audit.log")
	l := NewLog(Options{File: file, Log: testkit.Log(t)})
	runLog(t, l, store)
	const n = 3 * batchLen
	server.Signal(syscall.SIGSTOP)
	recordMany(l, n)
	testkit.WaitForValue(t, "the lines of the file", n, func() int { return fileLines(t, file) })
	server.Signal(syscall.SIGCONT)
	awaitStored(t, store, n)

	server.Kill()
	recordMany(l, n)
	testkit.WaitForValue(t, "the lines of the file", 2*n, func() int { return fileLines(t, file) })
	server.Restart()
	testkit.WaitForValue(t, "the end of the queue", 0, func() int { return len(l.store.entries) })
}

// A batch that is retried when the relay stops gets a last attempt.
func TestLog_RetriesAtStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{failures: 1}
		l := NewLog(Options{Log: testkit.Log(t)})
		stop := runLog(t, l, store)
		recordMany(l, 3)
		synctest.Wait() // Run waits for the retry
		recordMany(l, 3)
		stop()
		if got := store.len(); got != 6 {
			t.Errorf("got %d entries, want 6", got)
		}
	})
}

func TestLog_ReportsEntriesLostAtStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Buffer
		l := NewLog(Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
		stop := runLog(t, l, blockedStore{})
		recordMany(l, 3)
		stop()
		if text := log.String(); !strings.Contains(text, "output=redis entry_count=3") {
			t.Errorf("got %s, want 3 lost entries", text)
		}
	})
}

// An entry that is missing in both outputs is counted once, and each output has its own log line.
func TestLog_CountsDroppedEntriesPerDestination(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	dropped := 0
	l := NewLog(Options{
		File: filepath.Join(t.TempDir(), "audit.log"), Dropped: func() { dropped++ },
		Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	recordMany(l, queueLen+10)
	if dropped != 10 {
		t.Errorf("got %d dropped entries, want 10", dropped)
	}
	for _, output := range []string{"file", "redis"} {
		if n := strings.Count(log.String(), "output="+output); n != 1 {
			t.Errorf("got %d log lines for %s, want 1:\n%s", n, output, log.String())
		}
	}
}

// The file is written before Redis is connected.
func TestLog_RunFileWithoutStore(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.log")
	synctest.Test(t, func(t *testing.T) {
		l := NewLog(Options{File: file, Log: testkit.Log(t)})
		fileCtx, stopFile := context.WithCancel(t.Context())
		storeCtx, stopStore := context.WithCancel(t.Context())
		stopped := make(chan struct{})
		run := func(f func() error) {
			_ = f()
			stopped <- struct{}{}
		}
		go run(func() error { return l.RunFile(fileCtx) })
		recordMany(l, 3)
		synctest.Wait()
		if got := fileLines(t, file); got != 3 {
			t.Errorf("got %d lines before Redis is connected, want 3", got)
		}
		store := &memoryStore{}
		go run(func() error { return l.RunStore(storeCtx, store) })
		synctest.Wait()
		stopStore()
		<-stopped
		recordMany(l, 1)
		stopFile()
		<-stopped
		if inFile, inStore := fileLines(t, file), store.len(); inFile != 4 || inStore != 3 {
			t.Errorf("got %d lines and %d stored entries, want 4 and 3", inFile, inStore)
		}
	})
}
