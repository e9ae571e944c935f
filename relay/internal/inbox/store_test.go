package inbox

import (
	"errors"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

func produce(t testing.TB, b *testInbox, id string, fields ...string) string {
	t.Helper()
	id, err := b.Commands().XAdd(t.Context(), &redis.XAddArgs{Stream: Key(b.Keys()), ID: id, Values: fields}).Result()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestStore_MovesEntriesOnce(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *testInbox) {
		ctx := t.Context()
		if entries, err := b.Read(ctx, "", 10, 10*time.Millisecond); err != nil || len(entries) != 0 {
			t.Fatalf("empty inbox: got %v, %v", entries, err)
		}
		produce(t, b, "*", "data", "{}", "key", "k")
		produce(t, b, "*", "dta", "{}")
		entries, err := b.Read(ctx, "", 10, 0)
		if err != nil || len(entries) != 2 {
			t.Fatalf("got entries %v, %v, want 2", entries, err)
		}
		if string(entries[0].Data) != "{}" || entries[0].Key != "k" || entries[1].Data != nil {
			t.Fatalf("got entries %v", entries)
		}
		valid := []Notification{{entries[0].ID, "k", notification("h", 1)}}
		rejected := []RejectedEntry{{entries[1].ID, entries[1].Data, "the field data is missing", ""}}
		for _, want := range []Result{{Stored: 1}, {Skipped: 1}} {
			if r, err := b.Append(ctx, 0, valid); err != nil || r.Stored != want.Stored || r.Skipped != want.Skipped {
				t.Errorf("append: got %+v, %v, want %+v", r, err, want)
			}
			r, err := b.Quarantine(ctx, rejected)
			if err != nil || r.Stored != want.Stored || r.Skipped != want.Skipped {
				t.Errorf("quarantine: got %+v, %v, want %+v", r, err, want)
			}
		}
		if err := b.Delete(ctx, []string{entries[0].ID, entries[1].ID}); err != nil {
			t.Error(err)
		}
		id := produce(t, b, "*", "data", "{}", "key", "k")
		r, err := b.Append(ctx, 0, []Notification{{id, "k", notification("h", 2)}})
		if err != nil || len(r.Duplicates) != 1 || r.Duplicates[0] != id {
			t.Errorf("known key: got %+v, %v, want duplicate %s", r, err, id)
		}
		if n := len(readLog(t, b, 0)); n != 1 {
			t.Errorf("got %d entries in the log, want 1", n)
		}
		bad, err := b.Commands().XRange(ctx, QuarantineKey(b.Keys()), "-", "+").Result()
		if err != nil || len(bad) != 1 {
			t.Fatalf("got quarantine %v, %v, want one entry", bad, err)
		}
		if v := bad[0].Values; v["reason"] != rejected[0].Reason || v["inbox"] != entries[1].ID {
			t.Errorf("got quarantine entry %v", v)
		}
	})
}

func TestAppend_AfterInboxWasDeleted(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *testInbox) {
		ctx := t.Context()
		produce(t, b, "1000-1", "data", "{}")
		if _, err := b.Append(ctx, 0, []Notification{{"1000-1", "", notification("h", 1)}}); err != nil {
			t.Fatal(err)
		}
		if err := b.Commands().Del(ctx, Key(b.Keys())).Err(); err != nil {
			t.Fatal(err)
		}
		produce(t, b, "5-1", "data", "{}")
		for range 2 {
			if _, err := b.Append(ctx, 0, []Notification{{"5-1", "", notification("h", 2)}}); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(readLog(t, b, 0)); n != 2 {
			t.Errorf("got %d entries in the log, want 2", n)
		}
	})
}

// A producer can cause any number of resets, but few lines in the log.
func TestStore_LimitsLogOfResets(t *testing.T) {
	t.Parallel()
	var log testkit.Buffer
	b := open(t, redistest.Start(t), redisconn.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	for range 3 * maxResetLines {
		produce(t, b, streamid.Max, "data", "{}")
		if err := b.Delete(t.Context(), []string{streamid.Max}); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(log.String(), "starts again"); n != maxResetLines {
		t.Errorf("got %d lines, want %d", n, maxResetLines)
	}
}

func TestAppend_RejectsOtherPartition(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{Partitions: 2})
	p := b.Keys().Partition("h")
	if _, err := b.Append(t.Context(), 1-p, []Notification{{"1-1", "", notification("h", 1)}}); err == nil {
		t.Error("entry of another partition: got no error")
	}
}

func TestAppend_WaitsForReplicas(t *testing.T) {
	t.Parallel()
	primary, replica := redistest.StartPair(t, redistest.FreePort(t))
	b := open(t, primary, redisconn.Options{MinReplicas: 1})
	entries := []Notification{{InboxID: "1-1", Notification: notification("h", 6)}}
	replica.Signal(syscall.SIGSTOP)
	for range 2 { // a repeat stores nothing, but waits again
		_, err := b.Append(t.Context(), 0, entries)
		if !errors.Is(err, redisconn.ErrTooFewReplicas) || !errors.Is(err, redisconn.ErrUnavailable) {
			t.Errorf("with a stopped replica: got %v, want ErrTooFewReplicas", err)
		}
	}
	replica.Signal(syscall.SIGCONT)
	testkit.WaitFor(t, "the replica to have the entry", func() bool {
		_, err := b.Append(t.Context(), 0, entries)
		return err == nil
	})
	if n := len(readLog(t, b, 0)); n != 1 {
		t.Errorf("got %d entries in the log, want 1", n)
	}
}

// Redis measures only the beginning of a long inbox, so many small entries could hide large ones.
func TestStore_IsLarge(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	for name, test := range map[string]struct {
		entries, size int
		want          bool
	}{
		"empty":               {0, 0, false},
		"few small entries":   {100, 100, false},
		"a few large entries": {6, 200_000, true},
		"many small entries":  {redisconn.MemorySamples, 1, false},
		"too many to measure": {redisconn.MemorySamples + 1, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t, redistest.Start(t), redisconn.Options{})
			data := strings.Repeat("x", test.size)
			if _, err := b.Commands().Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
				for range test.entries {
					pipe.XAdd(t.Context(), &redis.XAddArgs{Stream: Key(b.Keys()), Values: []any{"data", data}})
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if isLarge, err := b.IsLarge(t.Context(), limit); err != nil || isLarge != test.want {
				t.Errorf("got %t, %v, want %t", isLarge, err, test.want)
			}
		})
	}
}

// A field that was not read, or a second one, must not change the meaning of an entry without a notice.
func TestRead_ReportsUnusableEntries(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	large := strings.Repeat("x", 2<<20)
	for _, c := range []struct {
		fields []string
		want   string
	}{
		{[]string{"data", "{}", "other", "x", "key", "k"}, ""},
		{[]string{"blob", large, "data", "{}"}, "the entry has about 20971"},
		{[]string{"data", "{}", "blob", large, "key", "k"}, "bytes; at most 1114112 are read"},
		{[]string{large, "x"}, "the entry has about 20971"},
		{[]string{"data", "{}", "data", "[]"}, "several fields"},
		{[]string{"data", "{}", "key", "a", "key", "b"}, "several fields"},
	} {
		id, err := b.Commands().XAdd(t.Context(), &redis.XAddArgs{Stream: Key(b.Keys()), Values: c.fields}).Result()
		if err != nil {
			t.Fatal(err)
		}
		list, err := b.Read(t.Context(), "", 10, 0)
		if err != nil || len(list) != 1 || !strings.Contains(list[0].Problem, c.want) || (c.want == "") != (list[0].Problem == "") {
			t.Errorf("%.40q: got %+.200v, %v, want the problem %q", c.fields, list, err, c.want)
		}
		b.Commands().XDel(t.Context(), Key(b.Keys()), id)
	}
}
