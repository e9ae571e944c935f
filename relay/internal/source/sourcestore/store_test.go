package sourcestore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/inbox"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

// upstreamSize is the number of messages of the upstream. Every seventh is invalid.
const upstreamSize = 24

// readUpstream stores all messages after the position of the source, five at a time.
func readUpstream(ctx context.Context, b *testStore, hub string) error {
	s, kept, err := b.Open(ctx, "up", hub)
	if err != nil {
		return err
	}
	at := 0
	if kept.Cursor != "" {
		if at, err = strconv.Atoi(kept.Cursor); err != nil {
			return err
		}
	}
	for at < upstreamSize {
		resync := relay.Notification{ID: "gap", Topic: relay.TopicResync, Hub: hub, Data: []byte("{}")}
		batch := Batch{Notifications: []relay.Notification{resync}}
		for range 5 {
			if at++; at%7 == 0 {
				batch.Rejected = append(batch.Rejected, RejectedMessage{fmt.Appendf(nil, "bad %d", at), "invalid"})
			} else {
				target := hub
				if target == "" {
					target = fmt.Sprint("hub-", at%4)
				}
				batch.Notifications = append(batch.Notifications, notification(target, at))
			}
			if at == upstreamSize {
				break
			}
		}
		batch.Cursor, batch.Gaps = strconv.Itoa(at), 1
		if err := s.Store(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

// checkStored fails unless everything is stored once, in the order of each hub.
func checkStored(t *testing.T, b *testStore, hub, what string) {
	t.Helper()
	last, total := map[string]string{}, 0
	resyncs := map[string]int{} // by partition and account
	for p := range b.Keys().Partitions() {
		for _, n := range readLog(t, b, p) {
			if n.Topic == relay.TopicResync {
				resyncs[fmt.Sprint(p, n.Account)]++
				continue
			}
			if n.ID <= last[n.Hub] {
				t.Fatalf("%s: got ID %s after %s in %s", what, n.ID, last[n.Hub], n.Hub)
			}
			last[n.Hub] = n.ID
			total++
		}
	}
	want := map[string]int{}
	switch {
	case hub != "":
		want[fmt.Sprint(b.Keys().Partition(hub))] = (upstreamSize + 4) / 5
	default: // all partitions, and one of them for accounts
		for p := range b.Keys().Partitions() {
			want[fmt.Sprint(p, map[bool]string{true: "*"}[p == 0])] = (upstreamSize + 4) / 5
		}
	}
	if !maps.Equal(resyncs, want) {
		t.Fatalf("%s: got resyncs %v, want %v", what, resyncs, want)
	}
	bad, err := b.Commands().XRange(t.Context(), inbox.QuarantineKey(b.Keys()), "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	if want := upstreamSize / 7; total != upstreamSize-want || len(bad) != want {
		t.Fatalf("%s: got %d of %d entries in the log, %d of %d in the quarantine",
			what, total, upstreamSize-want, len(bad), want)
	}
	kept, err := b.Stats(t.Context(), "up", hub)
	if err != nil {
		t.Fatal(err)
	}
	if kept.Stored != int64(total) || kept.Quarantined != int64(len(bad)) || kept.Gaps != (upstreamSize+4)/5 ||
		kept.Cursor != strconv.Itoa(upstreamSize) || kept.LastStoredAt.IsZero() {
		t.Fatalf("%s: got statistics %+v", what, kept)
	}
}

// A process that is killed before or after any command leaves a position from which the next process continues
// without loss or duplicates, on one Redis and in a cluster with several slots.
func TestPosition_SurvivesKills(t *testing.T) {
	t.Parallel()
	redis, cluster := redistest.Start(t), redistest.StartClusterNode(t)
	for _, c := range []struct {
		name, url, hub string
		partitions     int
	}{
		{"one partition", redis.URL(), "", 1},
		{"three partitions", redis.URL(), "", 3},
		{"a hub in a cluster", cluster, "hub-1", 3},
		{"an account in a cluster", cluster, "", 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			kills := 0
			for last := int64(1); ; last++ {
				for _, executed := range []bool{false, true} {
					what := fmt.Sprintf("killed at %d, executed %t", last, executed)
					prefix := fmt.Sprintf("%d-%d-%t", len(c.name), last, executed)
					node := func(m *conntest.Killer) *testStore {
						b := openOptions(t, redisconn.Options{URL: c.url, Prefix: prefix, Partitions: c.partitions})
						if m != nil {
							b.Commands().AddHook(m)
						}
						return b
					}
					m := &conntest.Killer{Last: last, Executed: executed}
					doomed := node(m)
					err := readUpstream(t.Context(), doomed, c.hub)
					doomed.Close()
					b := node(nil)
					if again := readUpstream(t.Context(), b, c.hub); again != nil {
						t.Fatalf("%s: %v", what, again)
					}
					checkStored(t, b, c.hub, what)
					b.Close()
					if err == nil {
						t.Logf("%d kills", kills)
						if kills < 10 {
							t.Errorf("got %d kills, want at least 10", kills)
						}
						return
					}
					kills++
				}
			}
		})
	}
}

// A process that was paused for longer than its lease can no longer store anything.
func TestPosition_RejectsOldHolder(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	first, _, err := b.Open(t.Context(), "up", "h")
	if err != nil {
		t.Fatal(err)
	}
	second, kept, err := b.Open(t.Context(), "up", "h")
	if err != nil || kept.HasPosition {
		t.Fatalf("got statistics %+v, %v, want no position", kept, err)
	}
	batch := Batch{Cursor: "c1", Notifications: notifications("h", 1, 2)}
	if err := second.Store(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if err := first.Store(t.Context(), batch); !errors.Is(err, ErrTakenOver) {
		t.Errorf("first holder: got %v, want ErrTakenOver", err)
	}
	if got := readLog(t, b, 0); len(got) != 2 {
		t.Errorf("got %d entries, want 2", len(got))
	}
	_, kept, err = b.Open(t.Context(), "up", "other")
	if err != nil || kept.HasPosition || kept.Cursor != "" {
		t.Errorf("another hub: got statistics %+v, %v, want no position", kept, err)
	}
}

// After a lost reply it is unknown whether the batch is stored. A repeat must not store it twice.
func TestPosition_RepeatStoresOnce(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	s, _, err := b.Open(t.Context(), "up", "h")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Store(t.Context(), Batch{Cursor: "c0"}); err != nil { // loads the script
		t.Fatal(err)
	}
	m := &conntest.Killer{Last: 1, Executed: true}
	b.Commands().AddHook(m)
	batch := Batch{Cursor: "c1", Notifications: notifications("h", 1, 2)}
	if err := s.Store(t.Context(), batch); !errors.Is(err, redisconn.ErrUnavailable) {
		t.Fatal(err)
	}
	m.Last = 1 << 40
	for _, next := range []Batch{batch, {Cursor: "c2", Notifications: notifications("h", 3, 4)}} {
		if err := s.Store(t.Context(), next); err != nil {
			t.Fatal(err)
		}
	}
	if got := readLog(t, b, 0); len(got) != 4 || got[3].ID != notification("h", 4).ID {
		t.Errorf("got entries %v, want 4", got)
	}
}

func TestStore_Status(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	if got, err := b.Status(t.Context(), "up"); err != nil || got != nil {
		t.Errorf("got status %q, %v", got, err)
	}
	if err := b.SetStatus(t.Context(), "up", []byte("fine"), time.Minute); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Status(t.Context(), "up"); err != nil || string(got) != "fine" {
		t.Errorf("got status %q, %v", got, err)
	}
}
