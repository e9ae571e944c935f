package history

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

// counts implements Observer.
type counts struct{ stored, dropped atomic.Int64 }

func (c *counts) HistoryStored(n int)  { c.stored.Add(int64(n)) }
func (c *counts) HistoryDropped(n int) { c.dropped.Add(int64(n)) }

// newRecorder returns a recorder that is not running.
func newRecorder(t testing.TB, s *Store, node string, limits Retention) (*Recorder, *counts) {
	t.Helper()
	c := new(counts)
	return NewRecorder(RecorderOptions{
		Store: s, Node: node, Retention: func() Retention { return limits }, Observer: c, Log: slog.New(slog.DiscardHandler),
	}), c
}

func newEvent(i int, at time.Time) relay.Notification {
	return relay.Notification{
		ID: fmt.Sprintf("%08x%06x0a0b0c0d0e", at.Unix(), i), Topic: "container.created", Hub: "h1", Account: "acme",
		Cursor: fmt.Sprintf("%d-%d", at.UnixMilli()+3, i),
	}
}

// TestRecorder stores records of two nodes and finds the records of one event.
func TestRecorder(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, c *redisconn.Conn) {
		at := time.Now().UTC().Truncate(time.Millisecond)
		a, countsA := newRecorder(t, NewStore(c, c.Keys()), "node-a", Retention{MaxAge: time.Hour, MaxBytes: 1 << 20})
		b, _ := newRecorder(t, NewStore(c, c.Keys()), "node-b", Retention{MaxAge: time.Hour, MaxBytes: 1 << 20})
		n := newEvent(1, at)
		delivery, _ := ParseEventID("0102030405060708090a0b0c")
		failed := Attempt{
			Sink: "hook", Number: 1, Time: at, Duration: 12300 * time.Microsecond, Outcome: relay.OutcomeRetry,
			State: StateRetrying, NextAttempt: at.Add(5 * time.Second), Status: 503, Error: "status 503", Delivery: delivery,
		}
		delivered := Attempt{
			Sink: "hook", Number: 2, Time: at.Add(5 * time.Second), Duration: time.Millisecond, Status: 204, State: StateDelivered,
		}
		for range 2 { // the second time, all names have numbers
			a.RecordAttempt(&n, &failed)
			b.RecordAttempt(&n, &delivered)
			b.RecordClients(&n, 7)
			b.RecordClients(&n, 0)
			a.RecordDrop(&n, Drop{Sink: "slow", Reason: "account_share", Time: at, Attempts: 2})
			for i := range 200 {
				other := newEvent(1000+i, at)
				a.RecordAttempt(&other, &delivered)
			}
			a.flush(t.Context())
			b.flush(t.Context())
		}
		if countsA.stored.Load() != 404 || countsA.dropped.Load() != 0 {
			t.Errorf("got %d stored and %d dropped records, want 404 and 0", countsA.stored.Load(), countsA.dropped.Load())
		}
		id, _ := ParseEventID(n.ID)
		// A store that has not seen the names reads them.
		found, err := NewStore(c, c.Keys()).Find(t.Context(), id)
		if err != nil || len(found.Attempts) != 4 || len(found.Clients) != 2 || len(found.Drops) != 2 || found.Incomplete {
			t.Fatalf("got %+v, %v", found, err)
		}
		position, _ := streamid.ParsePosition(n.Cursor)
		failed.Event = EventRef{
			ID: id, Cursor: position, Partition: c.Keys().Partition("h1"), Topic: n.Topic, AccountHash: hashAccount("acme"),
		}
		delivered.Event, failed.Node, delivered.Node = failed.Event, "node-a", "node-b"
		for i, want := range []Attempt{failed, failed, delivered, delivered} {
			if got := *found.Attempts[i]; got != want {
				t.Errorf("attempt %d:\ngot  %+v\nwant %+v", i, got, want)
			}
		}
		if got, want := *found.Clients[1], (Clients{failed.Event, "node-b", 7}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if got, want := *found.Drops[1], (Drop{failed.Event, "slow", at, "account_share", 2}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}

func TestRecorder_Run(t *testing.T) {
	t.Parallel()
	c := conntest.OpenMemory(t)
	s := NewStore(c, c.Keys())
	r, stored := newRecorder(t, s, "node-a", Retention{MaxAge: time.Hour, MaxBytes: 1 << 20})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	n := newEvent(1, time.Now())
	r.RecordClients(&n, 1)
	testkit.WaitForValue(t, "the first record to be stored", 1, func() int64 { return stored.stored.Load() })
	r.RecordClients(&n, 2)
	cancel()
	if err := <-done; err != nil || stored.stored.Load() != 2 {
		t.Errorf("got %v and %d records at the end, want 2", err, stored.stored.Load())
	}
}

// With OnlyFailures, only failures are recorded. A nil recorder records nothing.
func TestRecorder_OnlyFailures(t *testing.T) {
	t.Parallel()
	c := conntest.OpenMemory(t)
	r, stored := newRecorder(t, NewStore(c, c.Keys()), "node-a", Retention{})
	r.opts.OnlyFailures = true
	n := newEvent(1, time.Now())
	for _, r := range []*Recorder{r, nil} {
		r.RecordClients(&n, 1)
		r.RecordAttempt(&n, &Attempt{Sink: "hook", State: StateDelivered})
		r.RecordAttempt(&n, &Attempt{Sink: "hook", State: StateDead})
		r.RecordAttempt(&n, &Attempt{Sink: "hook", State: StateDelivered, WasScheduled: true}) // a failure came before
		r.RecordDrop(&n, Drop{Sink: "hook", Reason: "x", Time: time.Now()})
	}
	r.RecordAttempt(&relay.Notification{ID: "foreign"}, &Attempt{Sink: "hook", State: StateDead})
	r.flush(t.Context())
	if stored.stored.Load() != 3 {
		t.Errorf("got %d records, want 3", stored.stored.Load())
	}
}

// A recorder without Redis drops records, and its memory is limited.
func TestRecorder_Outage(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := conntest.Open(t, server, redisconn.Options{})
	r, stored := newRecorder(t, NewStore(c, c.Keys()), "node-a", Retention{})
	server.Kill()
	const many = 100_000
	n := newEvent(1, time.Now())
	for range many {
		r.RecordAttempt(&n, &Attempt{Sink: "hook", Error: strings.Repeat("x", 1000)})
	}
	id, _ := ParseEventID(n.ID)
	if size := len(r.shards[id.shardNumber()].records); size > maxShardBytes+maxRecordBytes {
		t.Errorf("a shard has %d bytes, want at most about %d", size, maxShardBytes)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	r.flush(ctx)
	if stored.stored.Load() != 0 || stored.dropped.Load() != many {
		t.Errorf("got %d stored and %d dropped records, want all of %d dropped", stored.stored.Load(), stored.dropped.Load(), many)
	}
}

func TestRecorder_Trim(t *testing.T) {
	t.Parallel()
	c := conntest.Open(t, redistest.Start(t), redisconn.Options{})
	s := NewStore(c, c.Keys())
	const maxBytes = 1 << 20
	r, _ := newRecorder(t, s, "node-a", Retention{MaxAge: time.Hour, MaxBytes: maxBytes})
	for range 40 {
		for i := range 2000 {
			n := newEvent(i, time.Now())
			r.RecordAttempt(&n, &Attempt{Sink: "hook", Error: strings.Repeat("x", 100)})
		}
		r.flush(t.Context())
	}
	used := func() (sum int64) {
		t.Helper()
		for i := range shardCount {
			n, err := c.Commands().MemoryUsage(t.Context(), Key(c.Keys(), i), 0).Result()
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
		return sum
	}
	before := used()
	r.trimStreams(t.Context())
	// Each of the 64 streams may exceed its share by a node of 4 KiB.
	if after := used(); before < 4*maxBytes || after > 2*maxBytes || after < maxBytes/2 {
		t.Errorf("the history has %d bytes after %d, want about %d", after, before, maxBytes)
	}
	r.opts.Retention = func() Retention { return Retention{MaxAge: -time.Hour, MaxBytes: maxBytes} }
	r.trimStreams(t.Context())
	entries, err := c.Commands().XLen(t.Context(), Key(c.Keys(), 0)).Result()
	if err != nil || entries > 100 {
		t.Errorf("got %d entries (%v) although all are too old", entries, err)
	}
}

// Find ignores what it cannot read.
func TestFind_Malformed(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, c *redisconn.Conn) {
		s := NewStore(c, c.Keys())
		r, _ := newRecorder(t, s, "node-a", Retention{})
		n := newEvent(1, time.Now())
		id, _ := ParseEventID(n.ID)
		key := Key(c.Keys(), id.shardNumber())
		good := append((&EventRef{ID: id}).appendTo(nil, s.names, kindClients), 1)
		for _, records := range []string{
			"", "\x00", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "\x0d\x01" + string(id[:]),
			string([]byte{byte(len(good) - 1)}) + string(good[:len(good)-1]),
			"\x0e\x63" + string(id[:]) + "\x00", // an unknown kind
		} {
			block := append(appendBlockHead(nil, "node-b"), records...)
			if err := c.Commands().Do(t.Context(), "XADD", key, "*", field, block).Err(); err != nil {
				t.Fatal(err)
			}
		}
		for _, args := range [][]any{{field, ""}, {field, "\x63"}, {field, "\x01\x7f"}, {"other", "x"}} {
			if err := c.Commands().Do(t.Context(), append([]any{"XADD", key, "*"}, args...)...).Err(); err != nil {
				t.Fatal(err)
			}
		}
		r.RecordClients(&n, 3)
		r.flush(t.Context())
		found, err := s.Find(t.Context(), id)
		if err != nil || len(found.Clients) != 1 || found.Clients[0].Count != 3 || len(found.Attempts)+len(found.Drops) != 0 {
			t.Errorf("got %+v, %v, want one record", found, err)
		}
	})
}

// An operator may erase an account to free the memory of a full Redis.
func TestEraseAccount_FullRedis(t *testing.T) {
	t.Parallel()
	c := conntest.Open(t, redistest.Start(t), redisconn.Options{})
	s := NewStore(c, c.Keys())
	r, _ := newRecorder(t, s, "node-a", Retention{})
	for i := range 10 {
		n := newEvent(i, time.Now())
		n.Account = []string{"acme", "other"}[i%2]
		r.RecordClients(&n, 1)
	}
	r.flush(t.Context())
	if err := c.Commands().ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if deleted, err := s.EraseAccount(t.Context(), "acme"); err != nil || deleted != 5 {
		t.Errorf("got %d, %v, want 5", deleted, err)
	}
	if deleted, err := s.EraseAccount(t.Context(), "other"); err != nil || deleted != 5 {
		t.Errorf("the other account: got %d, %v, want 5", deleted, err)
	}
}

// EraseAccount deletes the records of one account and keeps the records of others.
func TestEraseAccount(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, c *redisconn.Conn) {
		s := NewStore(c, c.Keys())
		r, _ := newRecorder(t, s, "node-a", Retention{})
		var list [300]relay.Notification
		for part := range 3 { // several blocks in each stream
			for i := part; i < len(list); i += 3 {
				list[i] = newEvent(i, time.Now())
				list[i].Account = []string{"acme", "other"}[i/3%2]
				r.RecordClients(&list[i], 1)
				r.RecordAttempt(&list[i], &Attempt{Sink: "hook", Number: 1, Time: time.Now()})
			}
			r.flush(t.Context())
		}
		if err := c.Commands().Do(t.Context(), "XADD", Key(c.Keys(), 7), "*", field, "\x01\x00\x7f").Err(); err != nil {
			t.Fatal(err)
		}
		deleted, err := s.EraseAccount(t.Context(), "acme")
		if err != nil || deleted != 301 {
			t.Errorf("got %d, %v, want 300 records and a malformed block", deleted, err)
		}
		for i := range list {
			id, _ := ParseEventID(list[i].ID)
			found, err := s.Find(t.Context(), id)
			want := i / 3 % 2
			if err != nil || len(found.Attempts) != want || len(found.Clients) != want {
				t.Errorf("event %d of %s: got %+v, %v", i, list[i].Account, found, err)
			}
		}
		if deleted, err := s.EraseAccount(t.Context(), "acme"); err != nil || deleted != 0 {
			t.Errorf("the second time: got %d, %v", deleted, err)
		}
	})
}

func TestInsertLength(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 127, 128, 300, 20_000} {
		record := bytes.Repeat([]byte("x"), n)
		b := insertLength(append([]byte("before\x00"), record...), 6)
		length, size := binary.Uvarint(b[6:])
		if int(length) != n || !bytes.Equal(b[6+size:], record) || string(b[:6]) != "before" {
			t.Errorf("%d bytes: got a length of %d and %d bytes", n, length, len(b)-6-size)
		}
	}
}

func TestParseEventID(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "x", strings.Repeat("g", 24), strings.Repeat("0", 23), strings.Repeat("0", 26)} {
		if _, ok := ParseEventID(text); ok {
			t.Errorf("%q was accepted", text)
		}
	}
	if id, ok := ParseEventID("6f9c2b1e8a3d4c0017e50001"); !ok || id.String() != "6f9c2b1e8a3d4c0017e50001" {
		t.Errorf("got %s, %t", id, ok)
	}
}

// noNames has no numbers.
type noNames struct{}

func (noNames) numberOf(string) uint64       { return 0 }
func (noNames) textOf(uint64) (string, bool) { return "", false }

func FuzzBlock(f *testing.F) {
	a := Attempt{Event: EventRef{Topic: "t"}, Sink: "s", State: StateRetrying, Error: "e", Delivery: EventID{1}}
	record := a.appendFields(a.Event.appendTo(nil, noNames{}, kindAttempt), &a.Event, noNames{})
	f.Add(append(append(appendBlockHead(nil, "n"), byte(len(record))), record...))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := parseBlock(data)
		for err == nil {
			var raw rawRecord
			if raw, err = b.next(); raw == nil {
				return
			}
			hash, ok := raw.accountHash()
			record, decodeErr := raw.decode(b.node, noNames{})
			if a := record.Attempt; decodeErr == nil && a != nil && (!ok || a.Event.AccountHash != hash) {
				t.Errorf("got the hash %x, %t, want %x", hash, ok, a.Event.AccountHash)
			}
		}
		if !errors.Is(err, errMalformed) {
			t.Errorf("got %v", err)
		}
	})
}

// An event has failed at a sink if its newest record is a dead letter or a drop.
func TestFailedEvents(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, c *redisconn.Conn) {
		s := NewStore(c, c.Keys())
		r, _ := newRecorder(t, s, "node-a", Retention{})
		start := time.Now()
		record := func(event int, sink string, after time.Duration, state State) {
			n := newEvent(event, start)
			r.RecordAttempt(&n, &Attempt{Sink: sink, Number: 1, Time: start.Add(after), State: state})
		}
		record(1, "hook", 0, StateDelivered)
		record(2, "hook", 0, StateRetrying)
		record(2, "hook", time.Second, StateDelivered)
		record(3, "hook", 0, StateDead)
		record(7, "hook", 0, StateRetrying)
		record(8, "hook", 0, StateDead)
		record(8, "hook", time.Second, StateRetrying) // a replay
		record(4, "hook", time.Second, StateDelivered)
		record(4, "hook", 2*time.Second, StateDead) // a replay
		record(5, "other", 0, StateDead)
		dropped := newEvent(6, start)
		r.RecordDrop(&dropped, Drop{Sink: "hook", Reason: "operator", Time: start})
		late := newEvent(9, start)
		r.RecordDrop(&late, Drop{Sink: "hook", Reason: "operator", Time: start})
		r.RecordAttempt(&late, &Attempt{
			Sink: "hook", Number: 1, Time: start.Add(-time.Second), Duration: 2 * time.Second, State: StateDelivered,
		})
		r.flush(t.Context())
		failed, err := s.FailedEvents(t.Context(), "hook", start.Add(-time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		for event, want := range map[int]bool{1: false, 2: false, 3: true, 4: true, 5: false, 6: true, 7: false, 8: false, 9: false} {
			n := newEvent(event, start)
			id, _ := ParseEventID(n.ID)
			if _, got := failed[id]; got != want {
				t.Errorf("event %d: got failed %t, want %t", event, got, want)
			}
		}
		if later, err := s.FailedEvents(t.Context(), "hook", time.Now().Add(time.Hour)); err != nil || len(later) > 0 {
			t.Errorf("got %d events of the future, %v", len(later), err)
		}
	})
}

// Recording on the path of a delivery allocates nothing.
func TestRecordAttempt_AllocatesNothing(t *testing.T) {
	c := conntest.OpenMemory(t)
	r, _ := newRecorder(t, NewStore(c, c.Keys()), "node-a", Retention{})
	n := newEvent(1, time.Now())
	a := Attempt{Sink: "hook", Number: 1, Time: time.Now(), Duration: time.Millisecond, State: StateDelivered}
	for range 20 { // the buffer of the shard grows, and the names get numbers
		r.RecordAttempt(&n, &a)
	}
	r.flush(t.Context())
	if allocs := testing.AllocsPerRun(10, func() { r.RecordAttempt(&n, &a) }); allocs != 0 {
		t.Errorf("recording an attempt allocates %v times", allocs)
	}
}

func BenchmarkRecordAttempt(b *testing.B) {
	c := conntest.OpenMemory(b)
	s := NewStore(c, c.Keys())
	r, _ := newRecorder(b, s, "node-a", Retention{})
	n := newEvent(1, time.Now())
	a := Attempt{Sink: "hook", Number: 1, Time: time.Now(), Duration: time.Millisecond, State: StateDelivered}
	r.RecordAttempt(&n, &a)
	r.flush(b.Context())
	id, _ := ParseEventID(n.ID)
	b.ReportAllocs()
	for b.Loop() {
		r.RecordAttempt(&n, &a)
		if sh := &r.shards[id.shardNumber()]; len(sh.records) > maxShardBytes/2 {
			sh.records = sh.records[:0]
		}
	}
	e, _ := r.eventOf(&n)
	b.ReportMetric(float64(len(a.appendFields(e.appendTo(nil, s.names, kindAttempt), &e, s.names))), "bytes/record")
}

// ListRecords returns all selected records once, the newest first, whatever the size of the pages.
func TestListRecords(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, c *redisconn.Conn) {
		s := NewStore(c, c.Keys())
		r, _ := newRecorder(t, s, "node-a", Retention{})
		const many = 300
		for part := range 3 { // several blocks in each stream, with several records
			for i := part; i < many; i += 3 {
				n := newEvent(i, time.Now())
				r.RecordClients(&n, 1)
				r.RecordAttempt(&n, &Attempt{Sink: fmt.Sprint("sink-", i%2), Number: 1 + i, Time: time.Now()})
				if i%10 == 0 {
					r.RecordDrop(&n, Drop{Sink: "full", Reason: "account_share", Time: time.Now()})
				}
			}
			r.flush(t.Context())
		}
		list := func(limit int, matches func(Record) bool) (found []Record) {
			t.Helper()
			sel := Selection{Matches: matches, Limit: limit}
			for {
				page, err := s.ListRecords(t.Context(), sel)
				if err != nil || len(page.Records) > limit {
					t.Fatalf("got %d records, %v, want at most %d", len(page.Records), err, limit)
				}
				found = append(found, page.Records...)
				if sel.After = page.Next; sel.After == "" {
					return found
				}
			}
		}
		for _, limit := range []int{7, 100, 1000} {
			numbers := make(map[int]bool)
			attempts := list(limit, func(r Record) bool { return r.Attempt != nil && r.Attempt.Sink == "sink-1" })
			for _, r := range attempts {
				numbers[r.Attempt.Number] = true
			}
			drops := list(limit, func(r Record) bool { return r.Drop != nil })
			if len(attempts) != many/2 || len(numbers) != many/2 || len(drops) != many/10 {
				t.Errorf("%d per page: got %d attempts, %d of them different, and %d drops", limit, len(attempts), len(numbers), len(drops))
			}
			if first := attempts[0].Attempt.Number; first%3 == 1 { // 1 + i of the first part
				t.Errorf("%d per page: the first attempt is number %d, which is in the oldest part", limit, first)
			}
		}
		future := Selection{Matches: func(Record) bool { return true }, Limit: 5, Since: time.Now().Add(time.Hour)}
		if page, err := s.ListRecords(t.Context(), future); err != nil || len(page.Records) != 0 || page.Next != "" {
			t.Errorf("since a later time: got %+v, %v", page, err)
		}
		for _, after := range []string{"x", "1-1", "1-1.1:x", "1-1.1:-1"} {
			if _, err := s.ListRecords(t.Context(), Selection{After: after, Limit: 1}); !errors.Is(err, ErrInvalidCursor) {
				t.Errorf("%q: got %v", after, err)
			}
		}
	})
}
