package queue

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/inbox"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// appendRequests returns a request for each of the three ways to append notifications.
func appendRequests(i int) []eventlog.AppendRequest {
	return []eventlog.AppendRequest{
		{Hub: "h", Notifications: notifications("h", i, i)},
		{Hub: "h", Notifications: notifications("h", i, i+9)},
		{Hub: "h", Key: fmt.Sprint("k", i), Digest: "d", Notifications: notifications("h", i, i+9)},
	}
}

func TestStores_WriteAllOrNothingWithoutMemory(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	mustAppend(t, b, notification("h", 1))
	limitMemory := func(limit string) {
		t.Helper()
		if err := b.Commands().ConfigSet(t.Context(), "maxmemory", limit).Err(); err != nil {
			t.Fatal(err)
		}
	}
	limitMemory("1")
	for _, a := range appendRequests(2) {
		if _, err := b.Append(t.Context(), a); !errors.Is(err, redisconn.ErrUnavailable) {
			t.Errorf("append %d with key %q: got %v, want ErrUnavailable", len(a.Notifications), a.Key, err)
		}
	}
	stored := readLog(t, b, 0)
	if len(stored) != 1 {
		t.Fatalf("got %d entries in the log, want 1", len(stored))
	}
	// An entry of the inbox moves, because it already takes memory.
	entries := []inbox.Notification{{InboxID: "1-1", Notification: notification("h", 2)}}
	if _, err := b.inbox.Append(t.Context(), 0, entries); err != nil {
		t.Errorf("append an inbox entry: %v", err)
	}
	r := EnqueueRequest{
		From: streamid.Zero, To: "9-9", Sinks: []string{"s"},
		Matches: []SinkMatch{{ID: stored[0].Cursor, Sinks: []int{0}}},
	}
	if _, err := b.Enqueue(t.Context(), r); !errors.Is(err, redisconn.ErrUnavailable) {
		t.Errorf("enqueue: got %v, want ErrUnavailable", err)
	}
	// What frees memory works: a node takes its lease, the dispatcher starts and advances, and the log is trimmed.
	if _, err := b.RegisterSinks(t.Context(), 0, map[string]bool{"s": false}); err != nil {
		t.Errorf("register sinks: %v", err)
	}
	if result, err := b.Enqueue(t.Context(), EnqueueRequest{From: streamid.Zero, To: "9-9"}); err != nil || !result.Committed {
		t.Errorf("advance the position: got %+v, %v", result, err)
	}
	if err := b.Trim(t.Context(), 0, eventlog.Retention{MaxLen: 1}); err != nil {
		t.Errorf("trim the log: %v", err)
	}
	limitMemory("0")
	for _, a := range appendRequests(2) {
		if _, err := b.Append(t.Context(), a); err != nil {
			t.Error(err)
		}
	}
}
