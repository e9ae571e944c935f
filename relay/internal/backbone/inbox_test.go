package backbone

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
)

func produce(t testing.TB, b *Store, id string, fields ...string) string {
	t.Helper()
	id, err := b.Commands().XAdd(t.Context(), &redis.XAddArgs{Stream: b.keys.Inbox(), ID: id, Values: fields}).Result()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestInbox(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *Store) {
		ctx := t.Context()
		if entries, err := b.ReadInbox(ctx, "", 10, 10*time.Millisecond); err != nil || len(entries) != 0 {
			t.Fatalf("an empty inbox: %v, %v", entries, err)
		}
		produce(t, b, "*", "data", "{}", "key", "k")
		produce(t, b, "*", "dta", "{}")
		entries, err := b.ReadInbox(ctx, "", 10, 0)
		if err != nil || len(entries) != 2 || string(entries[0].Data) != "{}" || entries[0].Key != "k" || entries[1].Data != nil {
			t.Fatalf("read %v, %v", entries, err)
		}
		store := []InboxNotification{{entries[0].ID, "k", note("h", 1)}}
		refuse := []RejectedEntry{{entries[1].ID, entries[1].Data, "the field data is missing"}}
		for _, want := range []InboxResult{{Stored: 1}, {Skipped: 1}} {
			if r, err := b.StoreInboxEntries(ctx, 0, store); err != nil || r.Stored != want.Stored || r.Skipped != want.Skipped {
				t.Errorf("append: %+v, %v", r, err)
			}
			if r, err := b.Quarantine(ctx, refuse); err != nil || r.Stored != want.Stored || r.Skipped != want.Skipped {
				t.Errorf("quarantine: %+v, %v", r, err)
			}
		}
		if err := b.DeleteInboxEntries(ctx, []string{entries[0].ID, entries[1].ID}); err != nil {
			t.Error(err)
		}
		id := produce(t, b, "*", "data", "{}", "key", "k")
		if r, err := b.StoreInboxEntries(ctx, 0, []InboxNotification{{id, "k", note("h", 2)}}); err != nil || len(r.Duplicates) != 1 || r.Duplicates[0] != id {
			t.Errorf("a repeat by key: %+v, %v", r, err)
		}
		if n := len(logOf(t, b, 0)); n != 1 {
			t.Errorf("%d entries in the log", n)
		}
		bad, err := b.Commands().XRange(ctx, b.keys.Quarantine(), "-", "+").Result()
		if err != nil || len(bad) != 1 || bad[0].Values["reason"] != refuse[0].Reason || bad[0].Values["inbox"] != entries[1].ID {
			t.Errorf("quarantine holds %v, %v", bad, err)
		}
	})
}

func TestInboxBegunAnew(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *Store) {
		ctx := t.Context()
		produce(t, b, "1000-1", "data", "{}")
		if _, err := b.StoreInboxEntries(ctx, 0, []InboxNotification{{"1000-1", "", note("h", 1)}}); err != nil {
			t.Fatal(err)
		}
		if err := b.Commands().Del(ctx, b.keys.Inbox()).Err(); err != nil {
			t.Fatal(err)
		}
		produce(t, b, "5-1", "data", "{}")
		for range 2 {
			if _, err := b.StoreInboxEntries(ctx, 0, []InboxNotification{{"5-1", "", note("h", 2)}}); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(logOf(t, b, 0)); n != 2 {
			t.Errorf("%d entries in the log, want 2", n)
		}
	})
}

func TestInboxOfAnotherPartition(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), Options{Partitions: 2})
	p := b.keys.Partition("h")
	if _, err := b.StoreInboxEntries(t.Context(), 1-p, []InboxNotification{{"1-1", "", note("h", 1)}}); err == nil {
		t.Error("an entry of another partition was accepted")
	}
}
