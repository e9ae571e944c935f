package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// memoryStore keeps lines, and fails while failures is positive.
type memoryStore struct {
	mu       sync.Mutex
	failures int
	lines    []string
}

func (s *memoryStore) Append(_ context.Context, lines [][]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failures > 0 {
		s.failures--
		return errors.New("not now")
	}
	for _, line := range lines {
		s.lines = append(s.lines, string(line))
	}
	return nil
}

func TestLog_WritesFileAndStore(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.log")
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{failures: 3}
		l := NewLog(Options{File: file, Log: testkit.Log(t)})
		l.Record(Entry{
			Action: ActionAuthenticate, Result: "401.auth-invalid", Address: "192.0.2.1",
			Target: "GET /" + strings.Repeat("x", 10_000),
		})
		stop := runLog(t, l, store)
		time.Sleep(time.Minute)
		l.Record(Entry{Actor: "admin alice", Action: "sinks.pause", Target: "a", Result: ResultOK})
		stop()
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		if len(lines) != 2 || !slices.Equal(lines, store.lines) {
			t.Fatalf("the file has %q, the store %q", lines, store.lines)
		}
		var e Entry
		if err := json.Unmarshal([]byte(lines[0]), &e); err != nil || e.Address != "192.0.2.1" ||
			len(e.Target) > maxField+10 || e.Time.IsZero() {
			t.Errorf("got %+v, %v", e, err)
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("got mode %v, %v; want 0600", info.Mode(), err)
		}
	})
}

// An attacker who causes entries faster than they are written neither blocks the relay nor fills its memory.
func TestLog_DropsBeyondQueue(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	dropped := 0
	l := NewLog(Options{Dropped: func() { dropped++ }, Log: slog.New(slog.NewTextHandler(&log, nil))})
	for range queueLen + 10 {
		l.Record(Entry{Actor: "admin a", Action: ActionReloadConfig, Result: ResultOK})
	}
	if dropped != 10 || strings.Count(log.String(), "level=ERROR") != 1 {
		t.Errorf("got %d dropped entries, want 10, and one error:\n%s", dropped, log.String())
	}
}

func openRedis(t *testing.T, server *redistest.Server) *redisconn.Conn {
	t.Helper()
	conn, err := redisconn.Open(t.Context(), redisconn.Options{
		URL: server.URL(), Prefix: "t", Partitions: 1, Log: testkit.Log(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// Entries with long texts cannot fill Redis, even if there are few.
func TestStore_LimitsBytes(t *testing.T) {
	t.Parallel()
	conn := openRedis(t, redistest.Start(t))
	s := NewStore(conn, 100_000)
	lines := slices.Repeat([][]byte{[]byte(`{"detail":"` + strings.Repeat("x", 32<<10) + `"}`)}, 50)
	for range 2 * maxBytes / (50 * 32 << 10) {
		if err := s.Append(t.Context(), lines); err != nil {
			t.Fatal(err)
		}
	}
	used := conn.Commands().MemoryUsage(t.Context(), s.key, 0).Val()
	if limit := int64(maxBytes + 4<<20); used < maxBytes/2 || used > limit {
		t.Errorf("the audit log needs %d bytes, want at most %d and at least %d", used, limit, maxBytes/2)
	}
}

func TestStore_Search(t *testing.T) {
	t.Parallel()
	conn := openRedis(t, redistest.Start(t))
	const n = 3000
	s := NewStore(conn, n/2)
	start := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	var lines [][]byte
	for i := range n {
		e := Entry{
			Time: start.Add(time.Duration(i) * time.Second), Actor: "key ops", Action: ActionPublish, Target: "ip",
			Result: "429.rate-limiting",
		}
		switch i % 100 {
		case 0:
			e.Actor, e.Action, e.Address, e.Target = "admin alice", "sinks.pause", "192.0.2.1", "hook"
		case 1:
			e.AccountID = "acme"
		}
		line, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	if err := s.Append(t.Context(), lines); err != nil {
		t.Fatal(err)
	}
	if kept := conn.Commands().XLen(t.Context(), s.key).Val(); kept < n/2 || kept > n*2/3 {
		t.Errorf("%d entries are kept, want about %d", kept, n/2)
	}
	newest := start.Add((n - 100) * time.Second)
	for name, tt := range map[string]struct {
		f    Filter
		want int
	}{
		"limit":         {Filter{Limit: 5}, 5},
		"actor":         {Filter{Actor: "admin alice", Limit: 3}, 3},
		"account":       {Filter{AccountID: "acme", Since: newest, Limit: 100}, 1},
		"address":       {Filter{Address: "192.0.2.1", Since: newest, Limit: 100}, 1},
		"target":        {Filter{Target: "hook", Since: newest.Add(-500 * time.Second), Limit: 100}, 6},
		"action":        {Filter{Action: "sinks", Since: newest, Limit: 100}, 1},
		"action prefix": {Filter{Action: "sink", Limit: 100}, 0},
		"time":          {Filter{Since: start.Add((n - 10) * time.Second), Limit: 100}, 10},
		"nothing":       {Filter{Actor: "nobody", Limit: 100}, 0},
	} {
		got, _, err := s.Search(t.Context(), tt.f)
		if err != nil || len(got) != tt.want {
			t.Errorf("%s: got %d entries, %v; want %d", name, len(got), err, tt.want)
		}
		if !slices.IsSortedFunc(got, func(a, b Entry) int { return b.Time.Compare(a.Time) }) {
			t.Errorf("%s: the newest entry is not the first", name)
		}
	}

	for limit, want := range map[int][]int{4: {4, 2}, 3: {3, 3}} {
		var pages []int
		for f := (Filter{Action: "sinks", Since: newest.Add(-500 * time.Second), Limit: limit}); ; {
			page, next, err := s.Search(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			pages = append(pages, len(page))
			if f.After = next; next == "" {
				break
			}
		}
		if !slices.Equal(pages, want) {
			t.Errorf("limit %d: got pages of %v entries, want %v", limit, pages, want)
		}
	}
}
