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
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

// openPair returns a backbone on whichever server is the target, the primary at first.
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

// A replica that took over may lack what was read, and be beyond that place again by the time anybody looks: only the
// entry at the position tells.
func TestTailNoticesAPromotedReplicaThatWasBehind(t *testing.T) {
	t.Parallel()
	for _, behind := range []bool{false, true} {
		t.Run(fmt.Sprintf("behind=%t", behind), func(t *testing.T) {
			t.Parallel()
			b, primary, replica, target := openPair(t)
			r := follow(t, b, streamid.Zero)
			mustAppend(t, b, conntest.Notifications("h", 1, 10)...)
			testkit.WaitFor(t, "the first seen", func() bool { n, _ := r.count(); return n == 10 })
			promoted := replica.Client()
			testkit.WaitFor(t, "the first replicated", func() bool { return promoted.XLen(t.Context(), Key(b.Keys(), 0)).Val() == 10 })
			gaps := 0
			if behind {
				if err := promoted.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err(); err != nil {
					t.Fatal(err)
				}
				mustAppend(t, b, conntest.Notifications("h", 11, 15)...)
				gaps = 1
				testkit.WaitFor(t, "what is lost seen", func() bool { n, _ := r.count(); return n == 15 })
			} else if err := promoted.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err(); err != nil {
				t.Fatal(err)
			}
			for i := 101; i <= 120; i++ { // more than was lost, and later
				if err := promoted.Do(t.Context(), addArgs(Key(b.Keys(), 0), new(conntest.Notification("h", i)))...).Err(); err != nil {
					t.Fatal(err)
				}
			}
			target.Store(replica)
			primary.Kill()
			testkit.WaitFor(t, "stored", func() bool {
				_, err := b.Append(t.Context(), AppendRequest{Hub: "h", Key: "k", Notifications: conntest.Notifications("h", 121, 121)})
				return err == nil
			})
			testkit.WaitFor(t, "the newest seen, and a gap only where something was lost", func() bool {
				r.mu.Lock()
				defer r.mu.Unlock()
				return r.ids[len(r.ids)-1] == conntest.Notification("h", 121).ID && r.gaps == gaps
			})
			r.mu.Lock()
			defer r.mu.Unlock()
			if fresh := r.ids[len(r.ids)-21:]; len(r.ids) != 31+5*gaps || fresh[0] != conntest.Notification("h", 101).ID {
				t.Errorf("%d were read, the new history from %s on", len(r.ids), fresh[0])
			}
		})
	}
}

// What a promoted replica has stored since may have smaller ids than what was read: by a clock that is behind, or by
// chance in the same millisecond. It is read, behind the word about the loss.
func TestTailReadsSmallerIDsOfANewHistory(t *testing.T) {
	t.Parallel()
	for name, ids := range map[string][]string{
		"behind":    {"900-0", "950-0"},            // the newest is before the position
		"the same":  {"900-0", "1000-5"},           // at the position is another
		"passed it": {"900-0", "1000-3", "2000-0"}, // the position is not there any more
		// And the first search for what is common fails, which does not make the new history ours.
		"passed it, second look": {"900-0", "1000-3", "2000-0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t, "--appendfsync", "always")
			b := open(t, s, redisconn.Options{})
			if name == "passed it, second look" {
				b.Readers().AddHook(&failingOnce{})
			}
			add := func(at string, n int) {
				args := append([]any{"XADD", Key(b.Keys(), 0), at}, addArgs(Key(b.Keys(), 0), new(conntest.Notification("h", n)))[3:]...)
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
			add("1000-4", 11) // what follows is lost with the server
			add("1000-5", 12)
			testkit.WaitFor(t, "the first history seen", func() bool { n, _ := r.count(); return n == 4 })
			s.Kill()
			s.Restart()
			other := s.Client()
			for i, id := range ids {
				args := append([]any{"XADD", Key(b.Keys(), 0), id}, addArgs(Key(b.Keys(), 0), new(conntest.Notification("h", 21+i)))[3:]...)
				if err := other.Do(t.Context(), args...).Err(); err != nil {
					t.Fatal(err)
				}
			}
			testkit.WaitFor(t, "all of the new history seen", func() bool { n, g := r.count(); return n >= 4+len(ids) && g > 0 })
			r.mu.Lock()
			defer r.mu.Unlock()
			for i := range ids {
				if want := conntest.Notification("h", 21+i).ID; r.ids[4+i] != want {
					t.Errorf("%s comes where %s belongs", r.ids[4+i], want)
				}
			}
			if len(r.ids) != 4+len(ids) {
				t.Errorf("read %q", r.ids)
			}
		})
	}
}

// failingOnce lets the first XRANGE without a limit fail.
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
