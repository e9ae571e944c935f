package inbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

func TestQuarantine(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *testInbox) {
		for i := range 3 {
			_, err := b.Quarantine(t.Context(), []RejectedEntry{{
				InboxID: fmt.Sprintf("%d-0", 1+i), Data: fmt.Appendf(nil, "data %d", i), Reason: fmt.Sprint("reason ", i), Key: []string{"", "", "k"}[i],
			}})
			if err != nil {
				t.Fatal(err)
			}
		}
		var all []QuarantinedEntry
		for after := ""; ; {
			page, err := b.ListQuarantine(t.Context(), after, 2)
			if err != nil {
				t.Fatal(err)
			}
			if len(page) == 0 {
				break
			}
			all = append(all, page...)
			after = page[len(page)-1].ID
		}
		if len(all) != 3 {
			t.Fatalf("got %+v, want three entries", all)
		}
		if e := all[1]; e.Data != nil || e.Size != 6 || e.Reason != "reason 1" || e.InboxID != "2-0" || e.Time.IsZero() {
			t.Errorf("got %+v", e)
		}
		for range 2 { // as if the relay had crashed before the removal
			if err := b.ReplayQuarantined(t.Context(), all[0], []byte("other")); err != nil && !errors.Is(err, ErrNotQuarantined) {
				t.Fatal(err)
			}
		}
		if err := b.ReplayQuarantined(t.Context(), all[2], []byte("third")); err != nil {
			t.Fatal(err)
		}
		moved, err := b.Read(t.Context(), "", 10, 0)
		if err != nil || len(moved) != 3 || string(moved[0].Data) != "other" || len(moved[0].Key) < len("quarantine-")+26 ||
			moved[1].Key != moved[0].Key || strings.Contains(moved[0].Key, all[0].ID) || moved[2].Key != "k" {
			t.Errorf("got the inbox %+v, %v", moved, err)
		}
		if err := b.ReplayQuarantined(t.Context(), all[2], []byte("third")); !errors.Is(err, ErrNotQuarantined) {
			t.Errorf("a second replay: got %v, want ErrNotQuarantined", err)
		}
		ms, _, _ := strings.Cut(all[1].ID, "-")
		for _, id := range []string{all[0].ID, "x", "", "1-", ms, "0" + all[1].ID} {
			if _, err := b.GetQuarantined(t.Context(), id); !errors.Is(err, ErrNotQuarantined) {
				t.Errorf("%q: got %v, want ErrNotQuarantined", id, err)
			}
		}
		if e, err := b.GetQuarantined(t.Context(), all[1].ID); err != nil || string(e.Data) != "data 1" {
			t.Errorf("got %+v, %v, want data 1", e, err)
		}
		missing, err := b.DropQuarantined(t.Context(), []string{all[0].ID, "x", all[1].ID, all[2].ID})
		if want := []string{all[0].ID, "x", all[2].ID}; err != nil || !slices.Equal(missing, want) {
			t.Errorf("got missing %q, %v, want %q", missing, err, want)
		}
	})
}

// Small and large invalid entries cannot fill Redis. The newest remain.
func TestQuarantine_LimitsBytes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ maxMemory, want int64 }{
		"without a limit of memory": {0, maxQuarantineBytes},
		"small redis":               {64 << 20, 4 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t, redistest.Start(t), redisconn.Options{})
			if err := b.Commands().ConfigSet(t.Context(), "maxmemory", fmt.Sprint(test.maxMemory)).Err(); err != nil {
				t.Fatal(err)
			}
			testQuarantineBytes(t, b, test.want)
		})
	}
}

func testQuarantineBytes(t *testing.T, b *testInbox, want int64) {
	t.Helper()
	n := 0
	add := func(count, size int) {
		t.Helper()
		entries := make([]RejectedEntry, count)
		for i := range entries {
			n++
			entries[i] = RejectedEntry{InboxID: fmt.Sprintf("%d-0", n), Data: make([]byte, size), Reason: "invalid"}
		}
		if _, err := b.Quarantine(t.Context(), entries); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		add(1000, 1000)
	}
	for range 40 {
		add(1, 1<<20)
	}
	used, err := b.Commands().MemoryUsage(t.Context(), QuarantineKey(b.Keys()), 0).Result()
	if err != nil {
		t.Fatal(err)
	}
	if limit := want + 2<<20; used < want/2 || used > limit {
		t.Errorf("the quarantine needs %d bytes, want at most %d and at least %d", used, limit, want/2)
	}
	newest := b.Commands().XRevRangeN(t.Context(), QuarantineKey(b.Keys()), "+", "-", 1).Val()
	if len(newest) != 1 || newest[0].Values["inbox"] != fmt.Sprintf("%d-0", n) {
		t.Errorf("got the newest entry %.200v, want that of inbox entry %d-0", newest, n)
	}
}
