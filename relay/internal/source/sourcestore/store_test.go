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

// drawn is how much the upstream of these tests has. Of every seven one is bad.
const drawn = 24

// draw is a node that takes what the upstream has behind its place, five at a time, until all is stored.
func draw(ctx context.Context, b *testStore, hub string) error {
	s, kept, err := b.Store.Open(ctx, "up", hub)
	if err != nil {
		return err
	}
	at := 0
	if kept.Cursor != "" {
		if at, err = strconv.Atoi(kept.Cursor); err != nil {
			return err
		}
	}
	for at < drawn {
		batch := Batch{Notifications: []relay.Notification{{ID: "gap", Topic: relay.TopicResync, Hub: hub, Data: []byte("{}")}}}
		for range 5 {
			if at++; at%7 == 0 {
				batch.Rejected = append(batch.Rejected, RejectedMessage{fmt.Appendf(nil, "bad %d", at), "no good"})
			} else {
				of := hub
				if of == "" {
					of = fmt.Sprint("hub-", at%4)
				}
				batch.Notifications = append(batch.Notifications, notification(of, at))
			}
			if at == drawn {
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

// judgeDrawn fails unless everything is there once, in the order of each hub.
func judgeDrawn(t *testing.T, b *testStore, hub, what string) {
	t.Helper()
	last, total := map[string]string{}, 0
	told := map[string]int{} // of the gaps, by partition and account
	for p := range b.Keys().Partitions() {
		for _, n := range readLog(t, b, p) {
			if n.Topic == relay.TopicResync {
				told[fmt.Sprint(p, n.Account)]++
				continue
			}
			if n.ID <= last[n.Hub] {
				t.Fatalf("%s: %s comes behind %s in %s", what, n.ID, last[n.Hub], n.Hub)
			}
			last[n.Hub] = n.ID
			total++
		}
	}
	want := map[string]int{}
	switch {
	case hub != "":
		want[fmt.Sprint(b.Keys().Partition(hub))] = (drawn + 4) / 5
	default: // all partitions, and one of them for accounts
		for p := range b.Keys().Partitions() {
			want[fmt.Sprint(p, map[bool]string{true: "*"}[p == 0])] = (drawn + 4) / 5
		}
	}
	if !maps.Equal(told, want) {
		t.Fatalf("%s: gaps are told %v, want %v", what, told, want)
	}
	bad, err := b.Commands().XRange(t.Context(), inbox.QuarantineKey(b.Keys()), "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	if want := drawn / 7; total != drawn-want || len(bad) != want {
		t.Fatalf("%s: %d of %d are in the log, %d of %d in the quarantine", what, total, drawn-want, len(bad), want)
	}
	kept, err := b.Stats(t.Context(), "up", hub)
	if err != nil {
		t.Fatal(err)
	}
	if kept.Received != int64(total) || kept.Quarantined != int64(len(bad)) || kept.Gaps != (drawn+4)/5 ||
		kept.Cursor != strconv.Itoa(drawn) || kept.LastStoredAt.IsZero() {
		t.Fatalf("%s: the figures say %+v", what, kept)
	}
}

// A node that is killed at any command, before it or before its reply, leaves a place from which the next one goes on
// without a gap and without a repeat, on one Redis and where the partitions lie in several slots of a cluster.
func TestSourceSurvivesKills(t *testing.T) {
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
					err := draw(t.Context(), doomed, c.hub)
					doomed.Close()
					b := node(nil)
					if again := draw(t.Context(), b, c.hub); again != nil {
						t.Fatalf("%s: %v", what, again)
					}
					judgeDrawn(t, b, c.hub, what)
					b.Close()
					if err == nil {
						t.Logf("%d kills", kills)
						if kills < 10 {
							t.Error("hardly anything was killed")
						}
						return
					}
					kills++
				}
			}
		})
	}
}

// Whoever was stopped for longer than his lease and goes on finds that nothing is his any more.
func TestSourceRefusesWhoWasOvertaken(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	first, _, err := b.Store.Open(t.Context(), "up", "h")
	if err != nil {
		t.Fatal(err)
	}
	second, kept, err := b.Store.Open(t.Context(), "up", "h")
	if err != nil || kept.HasPosition {
		t.Fatalf("%+v, %v", kept, err)
	}
	if err := second.Store(t.Context(), Batch{Cursor: "c1", Notifications: notifications("h", 1, 2)}); err != nil {
		t.Fatal(err)
	}
	if err := first.Store(t.Context(), Batch{Cursor: "c1", Notifications: notifications("h", 1, 2)}); !errors.Is(err, ErrTakenOver) {
		t.Errorf("the first holder could still store: %v", err)
	}
	if got := readLog(t, b, 0); len(got) != 2 {
		t.Errorf("%d entries", len(got))
	}
	_, kept, err = b.Store.Open(t.Context(), "up", "other")
	if err != nil || kept.HasPosition || kept.Cursor != "" {
		t.Errorf("another hub's place is taken for this one's: %+v, %v", kept, err)
	}
}

// A reply that was lost leaves in doubt what happened; a repeat stores nothing twice.
func TestSourceRepeatsWhatIsInDoubt(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	s, _, err := b.Store.Open(t.Context(), "up", "h")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Store(t.Context(), Batch{Cursor: "c0"}); err != nil { // Redis has the script from here on
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
		t.Errorf("got %v", got)
	}
}

func TestStore_Status(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	if got, err := b.Status(t.Context(), "up"); err != nil || got != nil {
		t.Errorf("%q, %v", got, err)
	}
	if err := b.SetStatus(t.Context(), "up", []byte("fine"), time.Minute); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Status(t.Context(), "up"); err != nil || string(got) != "fine" {
		t.Errorf("%q, %v", got, err)
	}
}
