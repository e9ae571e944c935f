package queue

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/inbox"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

const (
	crashInbox     = 6 // one of them is invalid
	crashPublished = 4
)

// matchingSinks returns the sinks of the test that match: the first matches all entries, the second every other one.
func matchingSinks(data string) []int {
	if data[len(data)-2]%2 == 0 {
		return []int{0, 1}
	}
	return []int{0}
}

// runNode does everything that a node does, once.
func runNode(ctx context.Context, b *testStores, ids func() string) error {
	if err := publishAll(ctx, b, ids); err != nil {
		return err
	}
	if err := readInbox(ctx, b, ids); err != nil {
		return err
	}
	for p := range b.Keys().Partitions() {
		if err := dispatchAll(ctx, b, p); err != nil {
			return err
		}
		if err := b.Trim(ctx, p, eventlog.Retention{History: time.Hour, MaxLen: 1000}); err != nil {
			return err
		}
	}
	return nil
}

func newNotification(kind, hub string, i int, id string) relay.Notification {
	data := fmt.Appendf(nil, `{"%s":%d}`, kind, i)
	return relay.Notification{ID: id, Topic: "container.created", Hub: hub, Data: data}
}

// publishAll repeats failed requests with the same key, as a client does.
func publishAll(ctx context.Context, b *testStores, ids func() string) error {
	for r := range 2 {
		hub := fmt.Sprint("hub-", r)
		a := eventlog.AppendRequest{Hub: hub, Key: fmt.Sprint("request-", r), Digest: "d"}
		for i := range crashPublished / 2 {
			a.Notifications = append(a.Notifications, newNotification("published", hub, r*2+i, ids()))
		}
		if _, err := b.Append(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

func readInbox(ctx context.Context, b *testStores, ids func() string) error {
	for after := ""; ; {
		entries, err := b.inbox.Read(ctx, after, 4, 0)
		if err != nil || len(entries) == 0 {
			return err
		}
		good := map[int][]inbox.Notification{}
		var bad []inbox.RejectedEntry
		var all []string
		for _, e := range entries {
			all, after = append(all, e.ID), e.ID
			if e.Data == nil {
				bad = append(bad, inbox.RejectedEntry{InboxID: e.ID, Reason: "the field data is missing"})
				continue
			}
			var i int
			if _, err := fmt.Sscanf(string(e.Data), `{"inbox":%d}`, &i); err != nil {
				return err
			}
			n := newNotification("inbox", fmt.Sprint("hub-", i%3), i, ids())
			p := b.Keys().Partition(n.Hub)
			good[p] = append(good[p], inbox.Notification{InboxID: e.ID, Notification: n})
		}
		for _, p := range slices.Sorted(maps.Keys(good)) {
			if _, err := b.inbox.Append(ctx, p, good[p]); err != nil {
				return err
			}
		}
		if _, err := b.inbox.Quarantine(ctx, bad); err != nil {
			return err
		}
		if err := b.inbox.Delete(ctx, all); err != nil {
			return err
		}
	}
}

func dispatchAll(ctx context.Context, b *testStores, p int) error {
	for {
		s, err := b.RegisterSinks(ctx, p, map[string]bool{"all": true, "some": true})
		if err != nil {
			return err
		}
		ns, err := b.Range(ctx, p, s.Position, 2)
		if err != nil || len(ns) == 0 {
			return err
		}
		e := EnqueueRequest{
			Partition: p, From: s.Position, Generation: s.Generation, EntriesCovered: len(ns),
			Sinks: []string{"all", "some"},
		}
		for _, n := range ns {
			e.Matches, e.To = append(e.Matches, SinkMatch{n.Cursor, matchingSinks(string(n.Data))}), n.Cursor
		}
		// If the request did not commit, another node was faster, and the loop reads the state again.
		if _, err := b.Enqueue(ctx, e); err != nil {
			return err
		}
	}
}

func openNode(t *testing.T, s *redistest.Server, prefix string, m *conntest.Killer) *testStores {
	b := open(t, s, redisconn.Options{Prefix: prefix, Partitions: 2})
	if m != nil {
		b.Commands().AddHook(m)
		b.Readers().AddHook(m)
	}
	return b
}

// checkOnce fails unless every entry was stored once, and enqueued once in each matching queue.
func checkOnce(t *testing.T, b *testStores) {
	t.Helper()
	ctx := t.Context()
	read := func(key, field string) (out []string) {
		entries, err := b.Commands().XRange(ctx, key, "-", "+").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			out = append(out, fmt.Sprint(e.Values[field]))
		}
		return out
	}
	var logged, all, some, want, wantSome []string
	for p := range b.Keys().Partitions() {
		logged = append(logged, read(eventlog.Key(b.Keys(), p), "data")...)
		all = append(all, read(Key(b.Keys(), "all", p), "data")...)
		some = append(some, read(Key(b.Keys(), "some", p), "data")...)
	}
	for i := range crashPublished {
		want = append(want, fmt.Sprintf(`{"published":%d}`, i))
	}
	for i := range crashInbox - 1 {
		want = append(want, fmt.Sprintf(`{"inbox":%d}`, i))
	}
	for _, data := range want {
		if len(matchingSinks(data)) == 2 {
			wantSome = append(wantSome, data)
		}
	}
	for _, c := range []struct {
		what      string
		got, want []string
	}{{"log", logged, want}, {"queue all", all, want}, {"queue some", some, wantSome}} {
		slices.Sort(c.got)
		slices.Sort(c.want)
		if !slices.Equal(c.got, c.want) {
			t.Errorf("%s: got %v, want %v", c.what, c.got, c.want)
		}
	}
	if got := read(inbox.QuarantineKey(b.Keys()), "reason"); len(got) != 1 {
		t.Errorf("quarantine: got %v, want one entry", got)
	}
	if got := read(inbox.Key(b.Keys()), "data"); len(got) != 0 {
		t.Errorf("inbox: got %v, want no entries", got)
	}
}

func fillInbox(t *testing.T, b *testStores) {
	produce := func(field, value string) {
		t.Helper()
		args := redis.XAddArgs{Stream: inbox.Key(b.Keys()), Values: []string{field, value}}
		if err := b.Commands().XAdd(t.Context(), &args).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range crashInbox - 1 {
		produce("data", fmt.Sprintf(`{"inbox":%d}`, i))
		if i == 2 {
			produce("invalid", "x")
		}
	}
}

func TestStores_SurviveKillAtEveryCommand(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	var id atomic.Int64
	ids := func() string { return fmt.Sprintf("%024x", id.Add(1)) }
	for _, executed := range []bool{false, true} {
		t.Run(fmt.Sprintf("executed=%t", executed), func(t *testing.T) {
			for last := int64(1); ; last++ {
				prefix := fmt.Sprintf("crash-%t-%d", executed, last)
				second := openNode(t, s, prefix, nil)
				fillInbox(t, second)
				// On a new server each script needs one more command.
				if err := second.Commands().ScriptFlush(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
				m := &conntest.Killer{Last: last, Executed: executed}
				first := openNode(t, s, prefix, m)
				err := runNode(t.Context(), first, ids)
				first.Close()
				if err := runNode(t.Context(), second, ids); err != nil {
					t.Fatal(err)
				}
				checkOnce(t, second)
				second.Close()
				if t.Failed() {
					t.Fatalf("killed at command %d", last)
				}
				if err == nil {
					t.Logf("a node runs %d commands", last-1)
					return
				}
				if m.Sent.Load() < last {
					t.Fatal(err) // the error has another cause
				}
			}
		})
	}
}

func TestStores_ConcurrentNodes(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	var id atomic.Int64
	ids := func() string { return fmt.Sprintf("%024x", id.Add(1)) }
	for round := range 20 {
		prefix := fmt.Sprint("both-", round)
		nodes := []*testStores{openNode(t, s, prefix, nil), openNode(t, s, prefix, nil), openNode(t, s, prefix, nil)}
		fillInbox(t, nodes[0])
		var wg sync.WaitGroup
		for _, b := range nodes {
			wg.Go(func() {
				if err := runNode(t.Context(), b, ids); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if err := runNode(t.Context(), nodes[0], ids); err != nil {
			t.Error(err)
		}
		checkOnce(t, nodes[0])
		for _, b := range nodes {
			b.Close()
		}
	}
}
