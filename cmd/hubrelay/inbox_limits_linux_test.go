package main_test

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// peakMemory returns the maximum resident memory of a process, in bytes.
func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if m == nil {
		t.Fatalf("no VmHWM in %s", status)
	}
	kib, _ := strconv.ParseInt(string(m[1]), 10, 64)
	return kib << 10
}

// TestLongInbox_HugeEntriesDoNotFillMemory: a producer that fills the inbox with huge entries cannot exhaust the memory of the relay. The entries go to the
// quarantine, and later entries are accepted. The bound is twice what a busy machine needs.
func TestLongInbox_HugeEntriesDoNotFillMemory(t *testing.T) {
	const (
		entries = 40
		size    = 16 << 20
		most    = 128 << 20
	)
	server := redistest.Start(t, "--appendonly", "no") // the entries are 640 MiB
	config := daemonConfig{redis: fmt.Sprintf("url: %q", server.URL())}
	idle := serve(t, config)
	base := peakMemory(t, idle.Cmd.Process.Pid)
	idle.Stop(t)

	store := redisAt(t, server.Socket)
	data := bytes.Repeat([]byte("x"), size)
	for range entries {
		if err := store.XAdd(t.Context(), &redis.XAddArgs{
			Stream: "hubrelay:inbox", Values: []any{"data", data},
		}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	d := serve(t, config)
	testkit.Eventually(t, "all huge entries to leave the inbox", func() error {
		n, err := store.XLen(t.Context(), "hubrelay:inbox").Result()
		if err == nil && n != 0 {
			err = fmt.Errorf("%d are there", n)
		}
		return err
	})
	if n, err := store.XLen(t.Context(), "hubrelay:quarantine").Result(); err != nil || n < 8 || n > 20 { // of a MiB each
		t.Errorf("the quarantine has %d entries, want about 16; error %v", n, err)
	}
	if got := peakMemory(t, d.Cmd.Process.Pid); got-base > most {
		t.Errorf("the relay used %d MiB more than when it is idle, want at most %d MiB", (got-base)>>20, most>>20)
	}
	socket := d.connect(t, opsKey, "hub-1", "")
	if err := store.XAdd(t.Context(), &redis.XAddArgs{
		Stream: "hubrelay:inbox", Values: []any{"data", `{"topic":"container.created","context":{"hub_id":"hub-1"}}`},
	}).Err(); err != nil {
		t.Fatal(err)
	}
	socket.wait(t, 1)
}
