package ingest

import (
	"fmt"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
)

// Many clients must not fill a small Redis with their idempotency keys.
func TestKeyClients_ShareMemory(t *testing.T) {
	t.Parallel()
	const maxMemory = 64 << 20
	var c keyClients
	start := time.Now()
	for i, step := range []struct {
		client    string
		after     time.Duration
		maxMemory int64
		want      int64
	}{
		{"a", 0, 0, eventlog.MaxIdempotencyBytes},
		{"a", 0, 64 << 30, eventlog.MaxIdempotencyBytes},
		{"a", 0, maxMemory, 512 << 10},
		{"b", time.Minute, maxMemory, (1 << 20) / 3},
		{"a", time.Minute, maxMemory, (1 << 20) / 3},
		{"a", 11 * time.Minute, maxMemory, (1 << 20) / 3},
		{"a", 22 * time.Minute, maxMemory, 512 << 10}, // b has used no key for 21 minutes
		{"b", 22 * time.Minute, maxMemory, (1 << 20) / 3},
		{"a", 50 * time.Minute, maxMemory, 512 << 10},
		{"a", 50 * time.Minute, 1 << 20, minKeyBytes},
	} {
		if got := c.maxBytes(step.client, step.maxMemory, start.Add(step.after)); got != step.want {
			t.Errorf("step %d: got %d bytes, want %d", i, got, step.want)
		}
	}
}

// smallRoom is the room of a Redis of 1 MiB.
type smallRoom struct{ endlessRoom }

func (smallRoom) MaxMemory() int64 { return 1 << 20 }

func TestPublish_SmallRedisKeepsFewKeys(t *testing.T) {
	t.Parallel()
	store := openStores(t, redistest.Start(t), 1)
	pub := NewPublisher(PublisherOptions{Decoder: newDecoder(t), Log: store.log, Room: smallRoom{}})
	publish := func(key string) string {
		t.Helper()
		ids, err := pub.Publish(t.Context(), publication(key, item(0)))
		if err != nil {
			t.Fatal(err)
		}
		return ids[0]
	}
	const count = 4 * minKeyBytes / 160
	first := publish("0")
	if got := publish("0"); got != first {
		t.Fatalf("a repeat returned the ID %s, want %s", got, first)
	}
	last := ""
	for i := range count {
		last = publish(fmt.Sprint(i))
	}
	if got := publish(fmt.Sprint(count - 1)); got != last {
		t.Errorf("a repeat of the last request returned the ID %s, want %s", got, last)
	}
	if publish("0") == first {
		t.Errorf("the key of the first of %d requests is still known", count)
	}
}
