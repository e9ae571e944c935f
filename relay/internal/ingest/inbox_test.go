package ingest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/inbox"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

type counts struct{ stored, repeated, quarantined atomic.Int64 }

func (c *counts) InboxStored(n int)      { c.stored.Add(int64(n)) }
func (c *counts) InboxRepeated(n int)    { c.repeated.Add(int64(n)) }
func (c *counts) InboxQuarantined(n int) { c.quarantined.Add(int64(n)) }

// runInbox runs an inbox reader until stop is called or the test ends.
func runInbox(t *testing.T, store InboxStore, lease Lease, c *counts) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	in := NewInboxReader(InboxOptions{Decoder: newDecoder(t), Store: store, Lease: lease, Observer: c})
	go func() {
		defer close(done)
		if err := in.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(stop)
	return stop
}

func add(t testing.TB, b *testStores, fields ...any) string {
	t.Helper()
	id, err := b.Commands().XAdd(t.Context(), &redis.XAddArgs{Stream: inbox.Key(b.Keys()), Values: fields}).Result()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func inboxItem(hub string, i int) string {
	return fmt.Sprintf(`{"topic":"job.created","object":{"id":"%d"},"context":{"hub_id":"%s","account_id":"any"}}`, i,
		hub)
}

// inboxLen returns the length of the inbox, or -1 if Redis is unreachable.
func inboxLen(b *testStores) int64 {
	n, err := b.Commands().XLen(context.Background(), inbox.Key(b.Keys())).Result()
	if err != nil {
		return -1
	}
	return n
}

func TestInbox_StoresValidAndQuarantinesInvalid(t *testing.T) {
	t.Parallel()
	b := openStores(t, redistest.Start(t), 4)
	var want []string
	for i := range 20 {
		hub := fmt.Sprintf("hub-%d", i%5)
		add(t, b, "data", inboxItem(hub, i))
		want = append(want, hub+"/"+fmt.Sprint(i))
	}
	bad := []struct{ field, data, reason string }{
		{"data", `{`, "400.invalid-syntax"},
		{"data", `{"topic":"job.craeted","context":{"hub_id":"h"}}`, "the nearest topic is job.created"},
		{"data", `{"topic":"job.created","context":{}}`, "(422.missing-argument at /context/hub_id)"},
		{"data", ``, "400.invalid-syntax"},
		{"data", `not json`, "line 1, column 1: not JSON: expected a value, found 'n' (400.invalid-syntax)"},
		{"dat", inboxItem("h", 1), `no field "data"`},
		{"data", strings.Repeat("x", 4*MaxNotification+1), "413.too-large"},
	}
	var ids []string
	for _, e := range bad {
		ids = append(ids, add(t, b, e.field, e.data))
	}
	ids = append(ids, add(t, b, "data", inboxItem("h", 1), "key", "a b"))
	add(t, b, "data", inboxItem("hub-0", 20))
	want = append(want, "hub-0/20")

	c := &counts{}
	runInbox(t, b.inbox, b.leases.Lease("inbox", time.Second), c)
	testkit.WaitForValue(t, "the inbox is empty", 0, func() int64 { return inboxLen(b) })

	last := map[string]int{}
	stored := logOf(t, b)
	if len(stored) != len(want) {
		t.Errorf("got %d stored entries, want %d", len(stored), len(want))
	}
	for _, n := range stored {
		e, err := n.Envelope()
		if err != nil {
			t.Fatal(err)
		}
		var i int
		if _, err := fmt.Sscan(e.Object.ID, &i); err != nil {
			t.Fatal(err)
		}
		if before, ok := last[n.Hub]; ok && before >= i {
			t.Errorf("%s: %d came after %d", n.Hub, i, before)
		}
		last[n.Hub] = i
		if n.Account != "any" {
			t.Errorf("got account %q", n.Account)
		}
	}

	put, err := b.Commands().XRange(t.Context(), inbox.QuarantineKey(b.Keys()), "-", "+").Result()
	if err != nil || len(put) != len(ids) {
		t.Fatalf("%d in quarantine, want %d (%v)", len(put), len(ids), err)
	}
	for i, e := range bad {
		reason, _ := put[i].Values["reason"].(string)
		data, _ := put[i].Values["data"].(string)
		wantData := e.data[:min(len(e.data), maxQuarantined)]
		if e.field != "data" {
			wantData = fmt.Sprintf(`{%q:%q}`, e.field, e.data) // so the wrong name is visible
		}
		if !strings.Contains(reason, e.reason) || data != wantData || put[i].Values["inbox"] != ids[i] {
			t.Errorf("quarantine holds %.200v, want the reason %q and its data", put[i].Values, e.reason)
		}
	}
	if reason := put[len(bad)].Values["reason"]; reason != `the field "key" must have visible ASCII characters only` {
		t.Errorf("invalid key: got %v", reason)
	}
	if c.stored.Load() != 21 || c.quarantined.Load() != 8 || c.repeated.Load() != 0 {
		t.Errorf("counted %d stored, %d quarantined, %d repeated", c.stored.Load(), c.quarantined.Load(),
			c.repeated.Load())
	}
}

func TestInbox_DeduplicatesByKey(t *testing.T) {
	t.Parallel()
	b := openStores(t, redistest.Start(t), 1)
	c := &counts{}
	runInbox(t, b.inbox, b.leases.Lease("inbox", time.Second), c)
	for i, hub := range []string{"h", "h", "g", "h"} {
		add(t, b, "key", "k", "data", inboxItem(hub, i))
	}
	add(t, b, "key", "k", "data", strings.Replace(inboxItem("h", 4), `"any"`, `"other"`, 1))
	testkit.WaitForValue(t, "the inbox is empty", 0, func() int64 { return inboxLen(b) })
	if n := len(logOf(t, b)); n != 3 || c.repeated.Load() != 2 {
		t.Errorf("%d are stored and %d repeats counted, want 3 (of two hubs, and of two accounts of one) and 2", n, c.repeated.Load())
	}
}

// A corrected entry keeps the idempotency key of its producer.
func TestQuarantine_ReplayKeepsKey(t *testing.T) {
	t.Parallel()
	b := openStores(t, redistest.Start(t), 1)
	c := &counts{}
	runInbox(t, b.inbox, b.leases.Lease("inbox", time.Second), c)
	valid := inboxItem("h", 1)
	for range 2 {
		add(t, b, "key", "k", "data", strings.Replace(valid, "job.created", "job.craeted", 1))
	}
	testkit.WaitForValue(t, "rejected entries", 2, func() int64 { return c.quarantined.Load() })
	list, err := b.inbox.ListQuarantine(t.Context(), "", 10)
	if err != nil || len(list) != 2 {
		t.Fatalf("got %+v, %v", list, err)
	}
	q := &Quarantine{Store: b.inbox, Decoder: newDecoder(t), CheckRoom: func() error { return nil }}
	if _, err := q.Replay(t.Context(), list[0].ID, []byte(valid)); err != nil || list[0].Key != "k" {
		t.Errorf("got %+v, %v, want the key k", list[0], err)
	}
	testkit.WaitForValue(t, "stored entries", 1, func() int64 { return int64(len(logOf(t, b))) })
	var rejected *relay.Error
	if _, err := q.Replay(t.Context(), list[1].ID, []byte(valid)); !errors.As(err, &rejected) || rejected.Code != relay.CodeInvalidState {
		t.Errorf("a replay with a used key: got %v", err)
	}
	if _, err := q.GetQuarantined(t.Context(), list[1].ID); err != nil {
		t.Errorf("the rejected replay removed the entry: %v", err)
	}
	add(t, b, "key", "k", "data", valid)
	testkit.WaitForValue(t, "repeated entries", 1, func() int64 { return c.repeated.Load() })
	if n := len(logOf(t, b)); n != 1 {
		t.Errorf("%d are stored, want 1", n)
	}
}

// failingStore fails before or after one call in three, like a lost response or a killed process.
type failingStore struct {
	*inbox.Store
	calls atomic.Int64
}

var errLost = errors.New("the reply was lost")

func (f *failingStore) fail(before bool) bool {
	n := f.calls.Add(1)
	return n < 60 && n%3 == 0 && before == (n%2 == 0)
}

func (f *failingStore) Append(
	ctx context.Context, p int, entries []inbox.Notification,
) (inbox.Result, error) {
	if f.fail(true) {
		return inbox.Result{}, errLost
	}
	r, err := f.Store.Append(ctx, p, entries)
	if f.fail(false) {
		return inbox.Result{}, errLost
	}
	return r, err
}

func (f *failingStore) Quarantine(ctx context.Context, entries []inbox.RejectedEntry) (inbox.Result, error) {
	r, err := f.Store.Quarantine(ctx, entries)
	if f.fail(false) {
		return inbox.Result{}, errLost
	}
	return r, err
}

func (f *failingStore) Delete(ctx context.Context, ids []string) error {
	if f.fail(true) {
		return errLost
	}
	return f.Store.Delete(ctx, ids)
}

// instantLease does not exclude other holders, which must do no harm.
type instantLease struct{}

func (instantLease) Run(ctx context.Context, fn func(context.Context) error) error {
	for ctx.Err() == nil {
		_ = fn(ctx)
	}
	return ctx.Err()
}

// brokenPartition is an inbox whose entries of one hub cannot be stored.
type brokenPartition struct {
	*inbox.Store
	hub    string
	err    error
	failed bool
	later  int // calls after the failed one
}

func (s *brokenPartition) Append(ctx context.Context, partition int, entries []inbox.Notification) (inbox.Result, error) {
	if s.Keys().Partition(s.hub) == partition {
		s.failed = true
		return inbox.Result{}, s.err
	}
	s.countCall()
	return s.Store.Append(ctx, partition, entries)
}

func (s *brokenPartition) Quarantine(ctx context.Context, entries []inbox.RejectedEntry) (inbox.Result, error) {
	s.countCall()
	return s.Store.Quarantine(ctx, entries)
}

func (s *brokenPartition) countCall() {
	if s.failed {
		s.later++
	}
}

// After a failover, the new primary may lack what was stored. It must keep the entries, and the earlier ones must be stored first.
func TestInbox_KeepsEntriesAfterLostConnection(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err   error
		stops bool // nothing more is stored
		left  int64
	}{
		"connection lost": {redisconn.WrapError("store", io.EOF), true, 3},
		"redis is full":   {redisconn.NewFullError("store", errors.New("OOM")), false, 1},
		"slot moves":      {redisconn.WrapError("store", errors.New("redis: ASK 1 127.0.0.1:1")), false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := openStores(t, redistest.Start(t), 2)
			good, bad := "hub-0", "hub-1"
			for i := 2; b.Keys().Partition(bad) == b.Keys().Partition(good); i++ {
				bad = fmt.Sprintf("hub-%d", i)
			}
			add(t, b, "data", inboxItem(good, 0))
			add(t, b, "data", inboxItem(bad, 1))
			add(t, b, "data", "invalid")
			store := &brokenPartition{Store: b.inbox, hub: bad, err: test.err}
			in := NewInboxReader(InboxOptions{Decoder: newDecoder(t), Store: store})
			if err := in.readOnce(t.Context()); !errors.Is(err, test.err) {
				t.Errorf("got error %v, want %v", err, test.err)
			}
			if left := inboxLen(b); left != test.left {
				t.Errorf("%d entries are left, want %d", left, test.left)
			}
			if stopped := store.later == 0; stopped != test.stops {
				t.Errorf("%d calls followed the failed one, want none: %t", store.later, test.stops)
			}
		})
	}
}

func TestInbox_StoresOnceDespiteFailures(t *testing.T) {
	t.Parallel()
	b := openStores(t, redistest.Start(t), 3)
	const n = 1000
	go func() {
		for i := range n {
			data := inboxItem(fmt.Sprintf("hub-%d", i%7), i)
			if i%50 == 49 {
				data = fmt.Sprintf("bad %d", i)
			}
			b.Commands().XAdd(context.Background(), &redis.XAddArgs{
				Stream: inbox.Key(b.Keys()), Values: []any{"data", data},
			})
		}
		b.Commands().XAdd(context.Background(), &redis.XAddArgs{
			Stream: inbox.Key(b.Keys()), Values: []any{"data", inboxItem("the last", n)},
		})
	}()
	for range 2 {
		runInbox(t, &failingStore{Store: b.inbox}, instantLease{}, &counts{})
	}
	testkit.WaitFor(t, "the last one is stored and the inbox empty", func() bool {
		if inboxLen(b) != 0 {
			return false
		}
		for _, n := range logOf(t, b) {
			if n.Hub == "the last" {
				return true
			}
		}
		return false
	})
	seen, last := map[int]bool{}, map[string]int{}
	for _, stored := range logOf(t, b) {
		e, err := stored.Envelope()
		if err != nil {
			t.Fatal(err)
		}
		var i int
		if _, err := fmt.Sscan(e.Object.ID, &i); err != nil {
			t.Fatal(err)
		}
		if seen[i] {
			t.Errorf("entry %d is stored twice", i)
		}
		if before, ok := last[stored.Hub]; ok && before > i {
			t.Errorf("%s: %d came after %d", stored.Hub, i, before)
		}
		seen[i], last[stored.Hub] = true, i
	}
	if want := n - n/50 + 1; len(seen) != want {
		t.Errorf("%d are stored, want %d", len(seen), want)
	}
	if got := b.Commands().XLen(t.Context(), inbox.QuarantineKey(b.Keys())).Val(); got != n/50 {
		t.Errorf("%d in quarantine, want %d", got, n/50)
	}
}

// Producers can write any number of invalid entries, which must not fill the log of the relay.
func TestInbox_LimitsLogOfRejectedEntries(t *testing.T) {
	t.Parallel()
	b := openStores(t, redistest.Start(t), 1)
	var log bytes.Buffer
	in := NewInboxReader(InboxOptions{
		Decoder: newDecoder(t), Store: b.inbox, Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	for range 2 * 16 * maxRejectedLines { // a script moves 16
		add(t, b, "data", "x")
	}
	for inboxLen(b) > 0 {
		if err := in.readOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(log.String(), "moved to the quarantine"); n != maxRejectedLines {
		t.Errorf("%d log records, want %d", n, maxRejectedLines)
	}
}

func TestInbox_SurvivesRedisRestart(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := openStores(t, s, 1)
	c := &counts{}
	runInbox(t, b.inbox, b.leases.Lease("inbox", time.Second), c)
	add(t, b, "data", inboxItem("h", 0))
	testkit.WaitForValue(t, "the first is stored", 1, func() int64 { return c.stored.Load() })
	s.Kill()
	s.Restart()
	testkit.WaitFor(t, "redis answers", func() bool { return inboxLen(b) >= 0 })
	add(t, b, "data", inboxItem("h", 1))
	testkit.WaitFor(t, "the second is stored", func() bool { return inboxLen(b) == 0 && len(logOf(t, b)) == 2 })
}

func BenchmarkInbox(b *testing.B) {
	store := openStores(b, redistest.Start(b), 1)
	in := NewInboxReader(InboxOptions{Decoder: newDecoder(b), Store: store.inbox})
	for b.Loop() {
		b.StopTimer()
		pipe := store.Commands().Pipeline()
		for range inboxCount {
			pipe.XAdd(b.Context(), &redis.XAddArgs{Stream: inbox.Key(store.Keys()), Values: []any{"data", typical}})
		}
		if _, err := pipe.Exec(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := in.readOnce(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*inboxCount/b.Elapsed().Seconds(), "entries/s")
}

// Redis accepts no entry after the highest ID, so the reader starts the inbox again. It does not mistake the entries of the new
// inbox, which have lower IDs, for handled ones, even if another highest ID follows them.
func TestInbox_ContinuesAfterHighestID(t *testing.T) {
	t.Parallel()
	b := openStores(t, redistest.Start(t), 1)
	add := func(args ...any) error {
		return b.Commands().Do(t.Context(), append([]any{"XADD", inbox.Key(b.Keys())}, args...)...).Err()
	}
	valid, invalid := inboxItem("h", 1), "not json"
	for _, c := range []struct {
		entries [][]any
		then    string
	}{
		{[][]any{{streamid.Max, "data", valid}}, invalid},
		{[][]any{{"*", "data", valid}, {streamid.Max, "data", valid}}, invalid},
		{[][]any{{streamid.Max, "data", invalid}}, valid},
		{[][]any{{"*", "data", invalid}, {streamid.Max, "data", invalid}}, valid},
		{[][]any{{"MAXLEN", "0", streamid.Max, "data", "removed at once"}}, valid},
	} {
		for _, args := range c.entries {
			if err := add(args...); err != nil {
				t.Fatal(err)
			}
		}
		if add("*", "data", "{}") == nil {
			t.Fatal("Redis accepted an entry after the highest ID")
		}
		stop := runInbox(t, b.inbox, b.leases.Lease("inbox", time.Second), &counts{})
		testkit.WaitForValue(t, "the inbox is empty", 0, func() int64 { return inboxLen(b) })
		testkit.WaitFor(t, "the inbox accepts entries", func() bool { return add("*", "data", c.then) == nil })
		testkit.WaitForValue(t, "the inbox is empty again", 0, func() int64 { return inboxLen(b) })
		stop()
	}
	if n := len(logOf(t, b)); n != 6 {
		t.Errorf("got %d events, want 6", n)
	}
	if n := b.Commands().XLen(t.Context(), inbox.QuarantineKey(b.Keys())).Val(); n != 5 {
		t.Errorf("got %d quarantined entries, want 5", n)
	}
}
