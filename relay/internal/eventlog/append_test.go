package eventlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

func TestAppend_KeepsAllFields(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *testLog) {
		want := notifications("h", 1, 5)
		want[2].Account = ""
		want[3].Data = []byte("{\"x\":\"\u2028\\u0000 9007199254740993\"}")
		mustAppend(t, b, want[0])
		mustAppend(t, b, want[1:]...)
		got := readLog(t, b, 0)
		for i := range got {
			if !streamid.IsValid(got[i].Cursor) {
				t.Errorf("entry %d: cursor %q is no stream ID", i, got[i].Cursor)
			}
			got[i].Cursor = ""
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	})
}

func TestAppend_RejectsInvalidRequests(t *testing.T) {
	t.Parallel()
	b := newTestLog(conntest.OpenMemory(t))
	if _, err := b.Append(t.Context(), AppendRequest{Hub: "h"}); err == nil {
		t.Error("empty request: got no error")
	}
	mixed := []relay.Notification{notification("h", 1), notification("i", 2)}
	if _, err := b.Append(t.Context(), AppendRequest{Hub: "h", Notifications: mixed}); err == nil {
		t.Error("events of two hubs: got no error")
	}
}

func TestAppend_IdempotencyKey(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *testLog) {
		request := func(digest string, from, to int) AppendRequest {
			return AppendRequest{Hub: "h", Client: "c", Key: "k", Digest: digest, Notifications: notifications("h", from, to)}
		}
		first, err := b.Append(t.Context(), request("d", 1, 3))
		if err != nil {
			t.Fatal(err)
		}
		again, err := b.Append(t.Context(), request("d", 11, 13))
		if err != nil || !slices.Equal(first, again) {
			t.Errorf("repeat: got IDs %v, %v, want %v", again, err, first)
		}
		if _, err := b.Append(t.Context(), request("e", 1, 1)); !errors.Is(err, ErrKeyReused) {
			t.Errorf("another digest: got %v, want ErrKeyReused", err)
		}
		if n := len(readLog(t, b, 0)); n != 3 {
			t.Errorf("got %d entries in the log, want 3", n)
		}
	})
}

func TestAppend_ConcurrentRepeats(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	var wg sync.WaitGroup
	results := make([][]string, 32)
	for i := range results {
		wg.Go(func() {
			list := notifications("h", i*10, i*10+1)
			ids, err := b.Append(t.Context(), AppendRequest{Hub: "h", Client: "c", Key: "k", Digest: "d", Notifications: list})
			if err != nil {
				t.Error(err)
			}
			results[i] = ids
		})
	}
	wg.Wait()
	for _, ids := range results {
		if !slices.Equal(ids, results[0]) {
			t.Errorf("got IDs %v and %v, want the same", ids, results[0])
		}
	}
	if n := len(readLog(t, b, 0)); n != 2 {
		t.Errorf("got %d entries in the log, want 2", n)
	}
}

func TestAppend_ConcurrentSingles(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{Partitions: 4})
	var wg sync.WaitGroup
	const callers, each = 50, 40
	for c := range callers {
		wg.Go(func() {
			hub := fmt.Sprintf("hub-%d", c)
			for i := range each {
				list := notifications(hub, i, i)
				if _, err := b.Append(t.Context(), AppendRequest{Hub: hub, Notifications: list}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	last, total := map[string]string{}, 0
	for p := range 4 {
		for _, n := range readLog(t, b, p) {
			total++
			if n.ID <= last[n.Hub] {
				t.Errorf("hub %s: got ID %s after %s, want ascending IDs", n.Hub, n.ID, last[n.Hub])
			}
			last[n.Hub] = n.ID
		}
	}
	if total != callers*each {
		t.Errorf("got %d entries, want %d", total, callers*each)
	}
}

// appendRequests returns a request for each of the three ways to append notifications.
func appendRequests(i int) []AppendRequest {
	return []AppendRequest{
		{Hub: "h", Notifications: notifications("h", i, i)},
		{Hub: "h", Notifications: notifications("h", i, i+9)},
		{Hub: "h", Key: fmt.Sprint("k", i), Digest: "d", Notifications: notifications("h", i, i+9)},
	}
}

func TestAppend_StoresAllOrNothingWhenMemoryFills(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	ctx := t.Context()
	if err := b.Commands().ConfigSet(ctx, "maxmemory", "4mb").Err(); err != nil {
		t.Fatal(err)
	}
	big := func(i int) []relay.Notification {
		ns := notifications("h", i, i+9)
		for j := range ns {
			ns[j].Data = []byte(`"` + strings.Repeat("x", 20_000) + `"`)
		}
		return ns
	}
	stored := 0
	for i := 0; i < 400; i += 10 {
		a := AppendRequest{Hub: "h", Notifications: big(i)}
		if i%20 == 0 {
			a.Key, a.Digest = fmt.Sprint(i), "d"
		}
		if _, err := b.Append(ctx, a); err == nil {
			stored += 10
		} else if !errors.Is(err, redisconn.ErrUnavailable) || !redisconn.IsOutOfMemory(err) {
			t.Fatal(err)
		}
	}
	if n := len(readLog(t, b, 0)); n != stored || stored == 400 || stored == 0 {
		t.Errorf("got %d entries in the log, want the %d that were accepted", n, stored)
	}
}

func TestAppend_DuringOutage(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := open(t, s, redisconn.Options{})
	mustAppend(t, b, notification("h", 1))
	s.Kill()
	for _, a := range appendRequests(2) {
		if _, err := b.Append(t.Context(), a); !errors.Is(err, redisconn.ErrUnavailable) {
			t.Errorf("append %d with key %q: got %v, want ErrUnavailable", len(a.Notifications), a.Key, err)
		}
	}
	s.Restart()
	testkit.WaitFor(t, "an append to succeed", func() bool {
		_, err := b.Append(t.Context(), AppendRequest{Hub: "h", Notifications: notifications("h", 2, 4)})
		return err == nil
	})
	if n := len(readLog(t, b, 0)); n != 4 {
		t.Errorf("got %d entries in the log, want 4", n)
	}
}

func TestAppend_CanceledContext(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := open(t, s, redisconn.Options{})
	mustAppend(t, b, notification("h", 1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Append(ctx, AppendRequest{Hub: "h", Notifications: notifications("h", 2, 2)})
	if err != nil && !errors.Is(err, redisconn.ErrUnavailable) {
		t.Error(err)
	}
}

func TestAppend_ClientDisplacesOnlyItsOwnIdempotencyKeys(t *testing.T) {
	t.Parallel()
	c := conntest.Open(t, redistest.Start(t), redisconn.Options{})
	b := &testLog{c, New(c, c.Keys(), Options{MaxMemory: func() int64 { return 1 << 20 }})}
	requests := 0
	isKnown := func(client, key string) bool {
		t.Helper()
		requests++
		n := notification("h", requests)
		n.ID = fmt.Sprintf("%024d", requests)
		ids, err := b.Append(t.Context(), AppendRequest{
			Hub: "h", Client: client, Key: key, Digest: "d", Notifications: []relay.Notification{n},
		})
		if err != nil || len(ids) != 1 {
			t.Fatalf("got IDs %v, %v", ids, err)
		}
		return ids[0] != n.ID
	}
	isKnown("other", "k")
	const count = 4 * minIdempotencyBytes / IdempotencyKeySize
	for i := range count {
		isKnown("hostile", fmt.Sprint(i))
	}
	if !isKnown("other", "k") {
		t.Error("the key of another client was deleted")
	}
	for i := count - 100; i < count; i++ {
		if !isKnown("hostile", fmt.Sprint(i)) {
			t.Errorf("key %d of %d is not known", i, count)
		}
	}
	if isKnown("hostile", "0") {
		t.Error("key 0 is known, although the newer ones are beyond the limit")
	}
	newer, older := ClientIdempotencyKeys(b.Keys(), 0, HashIdempotencyKey("hostile"))
	stored := int64(0)
	for _, key := range []string{newer, older} {
		n, err := b.Commands().HGet(t.Context(), key, "size").Int64()
		if err != nil {
			t.Fatal(err)
		}
		stored += n
	}
	if got := b.keyBudget.shares.Bytes("hostile"); got != stored {
		t.Errorf("the budget counts %d bytes, and Redis has %d", got, stored)
	}
	if got, most := b.measureKeys(t, "hostile"), int64(2*minIdempotencyBytes); got > most { // Redis needs some memory more
		t.Errorf("the idempotency keys of a client take %d bytes, want at most %d", got, most)
	}
}

// measureKeys returns the memory of the idempotency keys of a client in partition 0.
func (b *testLog) measureKeys(t *testing.T, client string) (total int64) {
	t.Helper()
	newer, older := ClientIdempotencyKeys(b.Keys(), 0, HashIdempotencyKey(client))
	for _, key := range []string{newer, older} {
		n, err := b.Commands().MemoryUsage(t.Context(), key).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Fatal(err)
		}
		total += n
	}
	return total
}

// The key of a request with many notifications takes no more memory than that of one.
func TestAppend_KeyOfLargeRequest(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	request := AppendRequest{Hub: "h", Client: "c", Key: "k", Digest: "d", Notifications: notifications("h", 1, 2000)}
	for i := range request.Notifications {
		if i > 0 {
			request.Notifications[i].ID = DeriveID(request.Notifications[0].ID, i)
		} else {
			request.Notifications[i].ID = "6b079575000001387d13e119"
		}
	}
	first, err := b.Append(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	for i := range request.Notifications {
		request.Notifications[i].ID = fmt.Sprint("another ", i)
	}
	again, err := b.Append(t.Context(), request)
	if err != nil || !slices.Equal(again, first) || len(first) != 2000 {
		t.Errorf("a repeat returned %d IDs, %v, want the %d of the first request", len(again), err, len(first))
	}
	if got := b.measureKeys(t, "c"); got > 500 {
		t.Errorf("the key takes %d bytes", got)
	}
}

func TestAppend_KeepsIdempotencyKeyForItsTime(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	newer, older := ClientIdempotencyKeys(b.Keys(), 0, HashIdempotencyKey("c"))
	request := func(key string, i int) string {
		t.Helper()
		ids, err := b.Append(t.Context(), AppendRequest{
			Hub: "h", Client: "c", Key: key, Digest: "d", Notifications: notifications("h", i, i),
		})
		if err != nil || len(ids) != 1 {
			t.Fatalf("got IDs %v, %v", ids, err)
		}
		return ids[0]
	}
	// letTimePass shortens the lives of both hashes.
	letTimePass := func(d time.Duration) {
		t.Helper()
		for _, key := range []string{newer, older} {
			left, err := b.Commands().PTTL(t.Context(), key).Result()
			if err != nil {
				t.Fatal(err)
			}
			if left > 0 {
				b.Commands().PExpire(t.Context(), key, left-d)
			}
		}
	}
	first := request("k", 1)
	letTimePass(IdempotencyTime - time.Minute)
	late := request("late", 2)
	letTimePass(2 * time.Minute)
	request("other", 3) // the newer hash becomes the older one
	letTimePass(IdempotencyTime - 3*time.Minute)
	if got := request("late", 4); got != late {
		t.Errorf("a key was deleted within its time: got ID %s, want %s", got, late)
	}
	letTimePass(IdempotencyTime)
	if got := request("k", 5); got == first {
		t.Error("a key is known after twice its time")
	}
}
