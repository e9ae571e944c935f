package eventlog

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// openPair returns a log on the server in target, which is the primary at first.
func openPair(t *testing.T) (b *testLog, primary, replica *redistest.Server, target *atomic.Pointer[redistest.Server]) {
	t.Helper()
	primary, replica = redistest.StartPair(t, redistest.FreePort(t))
	target = new(atomic.Pointer[redistest.Server])
	target.Store(primary)
	b = openOptions(t, redisconn.Options{Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", target.Load().Socket)
	}})
	return b, primary, replica, target
}

// A promoted replica may lack entries that were read, but have higher IDs again before the reader connects. Only the
// entry at the position shows the loss.
func TestTail_DetectsLossAfterPromotion(t *testing.T) {
	t.Parallel()
	for _, lagging := range []bool{false, true} {
		t.Run(fmt.Sprintf("lagging=%t", lagging), func(t *testing.T) {
			t.Parallel()
			b, primary, replica, target := openPair(t)
			r := follow(t, b, streamid.Zero)
			mustAppend(t, b, notifications("h", 1, 10)...)
			testkit.WaitForValue(t, "the first entries", 10, func() int { n, _ := r.count(); return n })
			promoted := replica.Client()
			testkit.WaitForValue(t, "replication", 10, func() int64 {
				return promoted.XLen(t.Context(), Key(b.Keys(), 0)).Val()
			})
			gaps := 0
			if lagging {
				if err := promoted.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err(); err != nil {
					t.Fatal(err)
				}
				mustAppend(t, b, notifications("h", 11, 15)...)
				gaps = 1
				testkit.WaitForValue(t, "the entries that will be lost", 15, func() int { n, _ := r.count(); return n })
			} else if err := promoted.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err(); err != nil {
				t.Fatal(err)
			}
			for i := 101; i <= 120; i++ { // more and higher IDs than were lost
				args := addArgs(Key(b.Keys(), 0), new(notification("h", i)), "")
				if err := promoted.Do(t.Context(), args...).Err(); err != nil {
					t.Fatal(err)
				}
			}
			target.Store(replica)
			primary.Kill()
			testkit.WaitFor(t, "an append to succeed", func() bool {
				list := notifications("h", 121, 121)
				_, err := b.Append(t.Context(), AppendRequest{Hub: "h", Client: "c", Key: "k", Notifications: list})
				return err == nil
			})
			testkit.WaitFor(t, "the newest entry, and a gap only after a loss", func() bool {
				r.mu.Lock()
				defer r.mu.Unlock()
				return r.ids[len(r.ids)-1] == notification("h", 121).ID && r.gaps == gaps
			})
			r.mu.Lock()
			defer r.mu.Unlock()
			want := notification("h", 101).ID
			if fresh := r.ids[len(r.ids)-21:]; len(r.ids) != 31+5*gaps || fresh[0] != want {
				t.Errorf("got %d entries, new ones from %s, want %d from %s", len(r.ids), fresh[0], 31+5*gaps, want)
			}
		})
	}
}

// A promoted replica may use lower IDs than the ones that were read, because of a slow clock or within the same
// millisecond. The reader must read these entries after it reported the gap.
func TestTail_ReadsLowerIDsAfterPromotion(t *testing.T) {
	t.Parallel()
	for name, ids := range map[string][]string{
		"lower":  {"900-0", "950-0"},            // the newest ID is below the position
		"equal":  {"900-0", "1000-5"},           // another entry is at the position
		"higher": {"900-0", "1000-3", "2000-0"}, // no entry is at the position
		// The first search for shared entries fails and must be repeated.
		"higher, second search": {"900-0", "1000-3", "2000-0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			b := open(t, s, redisconn.Options{})
			if name == "higher, second search" {
				b.Readers().AddHook(&failingOnce{})
			}
			add := func(at string, n int) {
				key := Key(b.Keys(), 0)
				args := append([]any{"XADD", key, at}, addArgs(key, new(notification("h", n)), "")[3:]...)
				if err := b.Commands().Do(t.Context(), args...).Err(); err != nil {
					t.Fatal(err)
				}
			}
			add("100-0", 1)
			add("200-0", 2)
			r := follow(t, b, "0-0")
			if err := b.Commands().ConfigSet(t.Context(), "appendonly", "no").Err(); err != nil {
				t.Fatal(err)
			}
			add("1000-4", 11) // not written to disk, so the restart loses it
			add("1000-5", 12)
			testkit.WaitForValue(t, "the first history", 4, func() int { n, _ := r.count(); return n })
			s.Kill()
			s.Restart()
			other := s.Client()
			for i, id := range ids {
				key := Key(b.Keys(), 0)
				args := append([]any{"XADD", key, id}, addArgs(key, new(notification("h", 21+i)), "")[3:]...)
				if err := other.Do(t.Context(), args...).Err(); err != nil {
					t.Fatal(err)
				}
			}
			testkit.WaitFor(t, "the new history", func() bool {
				n, gaps := r.count()
				return n >= 4+len(ids) && gaps > 0
			})
			r.mu.Lock()
			defer r.mu.Unlock()
			for i := range ids {
				if want := notification("h", 21+i).ID; r.ids[4+i] != want {
					t.Errorf("entry %d: got %s, want %s", 4+i, r.ids[4+i], want)
				}
			}
			if len(r.ids) != 4+len(ids) {
				t.Errorf("got IDs %q, want %d", r.ids, 4+len(ids))
			}
		})
	}
}

// failingOnce makes the first XRANGE without a limit fail.
type failingOnce struct{ done atomic.Bool }

func (f *failingOnce) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *failingOnce) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (f *failingOnce) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "xrange" && len(cmd.Args()) == 4 && f.done.CompareAndSwap(false, true) {
			cmd.SetErr(io.ErrUnexpectedEOF)
			return cmd.Err()
		}
		return next(ctx, cmd)
	}
}
