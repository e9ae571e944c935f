package eventlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

func TestAppendKeepsEverything(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *testLog) {
		want := conntest.Notifications("h", 1, 5)
		want[2].Account = ""
		want[3].Data = []byte("{\"x\":\"\u2028\\u0000 9007199254740993\"}")
		mustAppend(t, b, want[0])
		mustAppend(t, b, want[1:]...)
		got := readLog(t, b, 0)
		for i := range got {
			if !streamid.IsValid(got[i].Cursor) {
				t.Errorf("cursor %q", got[i].Cursor)
			}
			got[i].Cursor = ""
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	})
}

func TestAppendRefuses(t *testing.T) {
	t.Parallel()
	b := newTestLog(conntest.OpenMemory(t))
	if _, err := b.Append(t.Context(), AppendRequest{Hub: "h"}); err == nil {
		t.Error("nothing to store was accepted")
	}
	if _, err := b.Append(t.Context(), AppendRequest{Hub: "h", Notifications: []relay.Notification{conntest.Notification("h", 1), conntest.Notification("i", 2)}}); err == nil {
		t.Error("a mixed batch was accepted")
	}
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *testLog) {
		first, err := b.Append(t.Context(), AppendRequest{Hub: "h", Key: "k", Digest: "d", Notifications: conntest.Notifications("h", 1, 3)})
		if err != nil {
			t.Fatal(err)
		}
		again, err := b.Append(t.Context(), AppendRequest{Hub: "h", Key: "k", Digest: "d", Notifications: conntest.Notifications("h", 11, 13)})
		if err != nil || !slices.Equal(first, again) {
			t.Errorf("a repeat answered %v, %v, not %v", again, err, first)
		}
		if _, err := b.Append(t.Context(), AppendRequest{Hub: "h", Key: "k", Digest: "e", Notifications: conntest.Notifications("h", 1, 1)}); !errors.Is(err, ErrKeyReused) {
			t.Errorf("another body: %v", err)
		}
		if n := len(readLog(t, b, 0)); n != 3 {
			t.Errorf("%d entries in the log", n)
		}
	})
}

func TestConcurrentRepeats(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	var wg sync.WaitGroup
	answers := make([][]string, 32)
	for i := range answers {
		wg.Go(func() {
			ids, err := b.Append(t.Context(), AppendRequest{Hub: "h", Key: "k", Digest: "d", Notifications: conntest.Notifications("h", i*10, i*10+1)})
			if err != nil {
				t.Error(err)
			}
			answers[i] = ids
		})
	}
	wg.Wait()
	for _, ids := range answers {
		if !slices.Equal(ids, answers[0]) {
			t.Errorf("answers differ: %v, %v", ids, answers[0])
		}
	}
	if n := len(readLog(t, b, 0)); n != 2 {
		t.Errorf("%d entries in the log", n)
	}
}

func TestConcurrentSinglesAllArrive(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{Partitions: 4})
	var wg sync.WaitGroup
	const callers, each = 50, 40
	for c := range callers {
		wg.Go(func() {
			hub := fmt.Sprintf("hub-%d", c)
			for i := range each {
				if _, err := b.Append(t.Context(), AppendRequest{Hub: hub, Notifications: []relay.Notification{conntest.Notification(hub, i)}}); err != nil {
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
				t.Errorf("hub %s: %s after %s", n.Hub, n.ID, last[n.Hub])
			}
			last[n.Hub] = n.ID
		}
	}
	if total != callers*each {
		t.Errorf("%d of %d arrived", total, callers*each)
	}
}

// appends lists the three ways in which notifications are stored.
func appends(i int) []AppendRequest {
	return []AppendRequest{
		{Hub: "h", Notifications: conntest.Notifications("h", i, i)},
		{Hub: "h", Notifications: conntest.Notifications("h", i, i+9)},
		{Hub: "h", Key: fmt.Sprint("k", i), Digest: "d", Notifications: conntest.Notifications("h", i, i+9)},
	}
}

func TestOutOfMemoryInTheMiddle(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	ctx := t.Context()
	if err := b.Commands().ConfigSet(ctx, "maxmemory", "4mb").Err(); err != nil {
		t.Fatal(err)
	}
	big := func(i int) []relay.Notification {
		ns := conntest.Notifications("h", i, i+9)
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
		} else if !errors.Is(err, redisconn.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	if n := len(readLog(t, b, 0)); n != stored || stored == 400 || stored == 0 {
		t.Errorf("%d entries in the log, %d accepted", n, stored)
	}
}

func TestRedisAwayAndBack(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--appendfsync", "always")
	b := open(t, s, redisconn.Options{})
	mustAppend(t, b, conntest.Notification("h", 1))
	s.Kill()
	for _, a := range appends(2) {
		if _, err := b.Append(t.Context(), a); !errors.Is(err, redisconn.ErrUnavailable) {
			t.Errorf("%d with key %q: %v", len(a.Notifications), a.Key, err)
		}
	}
	s.Restart()
	testkit.WaitFor(t, "stored again", func() bool {
		_, err := b.Append(t.Context(), AppendRequest{Hub: "h", Notifications: conntest.Notifications("h", 2, 4)})
		return err == nil
	})
	if n := len(readLog(t, b, 0)); n != 4 {
		t.Errorf("%d entries in the log, want 4", n)
	}
}

func TestAppendFollowsItsContext(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := open(t, s, redisconn.Options{})
	mustAppend(t, b, conntest.Notification("h", 1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Append(ctx, AppendRequest{Hub: "h", Notifications: conntest.Notifications("h", 2, 2)}); err != nil && !errors.Is(err, redisconn.ErrUnavailable) {
		t.Error(err)
	}
}
