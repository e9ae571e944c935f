package backbone

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay/backbone/redistest"
)

// recorder collects what a tail reports.
type recorder struct {
	mu      sync.Mutex
	ids     []string
	gaps    int
	last    string
	batches []Batch
}

func (r *recorder) add(b Batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.batches = append(r.batches, b)
	r.last = b.Last
	if b.Gap {
		r.gaps++
	}
	for _, n := range b.Notifications {
		r.ids = append(r.ids, n.ID)
	}
}

func (r *recorder) count() (ids, gaps int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ids), r.gaps
}

// follow starts a tail that ends with the test.
func follow(t *testing.T, b *Backbone, from string) *recorder {
	t.Helper()
	r := &recorder{}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = b.Tail(ctx, 0, from, r.add)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return r
}

func (r *recorder) check(t *testing.T, from, to, gaps int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, id := range r.ids {
		if want := fmt.Sprintf("%024x", from+i); id != want {
			t.Fatalf("entry %d is %s, want %s", i, id, want)
		}
	}
	if len(r.ids) != to-from+1 || r.gaps != gaps {
		t.Errorf("%d entries and %d gaps, want %d and %d", len(r.ids), r.gaps, to-from+1, gaps)
	}
	for i := 1; i < len(r.batches); i++ {
		if r.batches[i].Prev != r.batches[i-1].Last {
			t.Errorf("batch %d begins at %s, the one before ended at %s", i, r.batches[i].Prev, r.batches[i-1].Last)
		}
	}
}

func TestTailSeesEverything(t *testing.T) {
	onBoth(t, func(t *testing.T, b *Backbone) {
		mustAppend(t, b, notes("h", 1, 700)...)
		all := follow(t, b, "0-0")
		from, err := b.TailFrom(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		mustAppend(t, b, notes("h", 701, 710)...)
		late := follow(t, b, from)
		eventually(t, "all seen", func() bool {
			n, _ := all.count()
			m, _ := late.count()
			return n == 710 && m == 10
		})
		all.check(t, 1, 710, 0)
		late.check(t, 701, 710, 0)
	})
}

func TestTailOutlivesARestart(t *testing.T) {
	s := redistest.Start(t, "--appendfsync", "always")
	b := open(t, s, Options{})
	r := follow(t, b, "0-0")
	mustAppend(t, b, notes("h", 1, 10)...)
	eventually(t, "the first seen", func() bool { n, _ := r.count(); return n == 10 })
	s.Kill()
	s.Restart()
	eventually(t, "stored", func() bool {
		_, err := b.Append(t.Context(), Append{Hub: "h", Notifications: notes("h", 11, 20)})
		return err == nil
	})
	eventually(t, "the rest seen", func() bool { n, _ := r.count(); return n == 20 })
	r.check(t, 1, 20, 0)
}

func TestTailNoticesALostTail(t *testing.T) {
	for _, written := range []bool{false, true} {
		t.Run(fmt.Sprintf("written=%t", written), func(t *testing.T) {
			// Nothing gets to the disk after the rewrite, so the restart loses it.
			s := redistest.Start(t, "--appendfsync", "always")
			b := open(t, s, Options{})
			r := follow(t, b, "0-0")
			mustAppend(t, b, notes("h", 1, 10)...)
			if err := b.Commands().ConfigSet(t.Context(), "appendonly", "no").Err(); err != nil {
				t.Fatal(err)
			}
			mustAppend(t, b, notes("h", 101, 105)...)
			eventually(t, "all seen", func() bool { n, _ := r.count(); return n == 15 })
			s.Kill()
			s.Restart()
			if !written {
				eventually(t, "the gap seen", func() bool { _, g := r.count(); return g == 1 })
			}
			eventually(t, "stored", func() bool {
				_, err := b.Append(t.Context(), Append{Hub: "h", Notifications: notes("h", 201, 201)})
				return err == nil
			})
			eventually(t, "the gap and what follows seen", func() bool { n, g := r.count(); return n == 16 && g == 1 })
		})
	}
}

func TestTailNoticesAFlush(t *testing.T) {
	b := open(t, redistest.Start(t), Options{})
	r := follow(t, b, "0-0")
	mustAppend(t, b, notes("h", 1, 10)...)
	eventually(t, "all seen", func() bool { n, _ := r.count(); return n == 10 })
	if err := b.Commands().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the gap seen", func() bool { _, g := r.count(); return g == 1 })
	mustAppend(t, b, notes("h", 11, 12)...)
	eventually(t, "the rest seen", func() bool { n, _ := r.count(); return n == 12 })
}

func TestGapAfterTrim(t *testing.T) {
	b := open(t, redistest.Start(t), Options{})
	ctx := t.Context()
	mustAppend(t, b, notes("h", 1, 10)...)
	from := logOf(t, b, 0)[4].Cursor
	trim := func(n int64) {
		if err := b.Commands().XTrimMaxLen(ctx, b.keys.Log(0), n).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if ok, err := b.Reach(ctx, 0, from); !ok || err != nil {
		t.Errorf("in reach: %t, %v", ok, err)
	}
	trim(3)
	r := follow(t, b, from)
	eventually(t, "the rest seen", func() bool { n, _ := r.count(); return n == 3 })
	r.check(t, 8, 10, 1)
	if ok, err := b.Reach(ctx, 0, from); ok || err != nil {
		t.Errorf("out of reach: %t, %v", ok, err)
	}
	// What was seen before it was trimmed is no gap.
	mustAppend(t, b, notes("h", 11, 11)...)
	eventually(t, "seen", func() bool { n, _ := r.count(); return n == 4 })
	trim(0)
	mustAppend(t, b, notes("h", 12, 12)...)
	eventually(t, "seen", func() bool { n, _ := r.count(); return n == 5 })
	r.check(t, 8, 12, 1)
}

func TestTailThatLags(t *testing.T) {
	b := open(t, redistest.Start(t), Options{})
	mustAppend(t, b, notes("h", 1, 600)...)
	r := &recorder{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var once sync.Once
	err := b.Tail(ctx, 0, "0-0", func(batch Batch) {
		r.add(batch)
		once.Do(func() {
			if err := b.Commands().XTrimMaxLen(ctx, b.keys.Log(0), 10).Err(); err != nil {
				t.Error(err)
			}
		})
		if batch.Last == logOf(t, b, 0)[9].Cursor {
			cancel()
		}
	})
	if n, gaps := r.count(); n != 522 || gaps != 1 {
		t.Errorf("%d entries and %d gaps (%v)", n, gaps, err)
	}
}

func TestTailEndsInTime(t *testing.T) {
	b := open(t, redistest.Start(t), Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	_ = b.Tail(ctx, 0, "", func(Batch) {})
	if d := time.Since(start); d > MaxBlock {
		t.Errorf("took %s", d)
	}
}

func TestCompareCursors(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"1-0", "1-0", 0}, {"2-0", "10-0", -1}, {"1-10", "1-9", 1}, {"5", "5-0", 0}, {"x", "0-0", 0}, {"18446744073709551615-1", "1-1", 1}} {
		if got := CompareCursors(c.a, c.b); got != c.want {
			t.Errorf("CompareCursors(%s, %s) = %d", c.a, c.b, got)
		}
	}
}

func FuzzCursor(f *testing.F) {
	for _, s := range []string{"1-2", "", "-", "1", "18446744073709551616-0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if CompareCursors(s, s) != 0 {
			t.Errorf("%q differs from itself", s)
		}
	})
}

// A replica that took over may lack what was read, and be beyond that place again by the time anybody looks: only the
// entry at the position tells.
func TestTailNoticesAPromotedReplicaThatWasBehind(t *testing.T) {
	t.Parallel()
	for _, behind := range []bool{false, true} {
		t.Run(fmt.Sprintf("behind=%t", behind), func(t *testing.T) {
			t.Parallel()
			primary, replica := redistest.StartPair(t, redistest.FreePort(t))
			var target atomic.Pointer[redistest.Server]
			target.Store(primary)
			b := openURL(t, Options{Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", target.Load().Socket)
			}})
			r := follow(t, b, begin)
			mustAppend(t, b, notes("h", 1, 10)...)
			eventually(t, "the first seen", func() bool { n, _ := r.count(); return n == 10 })
			promoted := replica.Client()
			eventually(t, "the first replicated", func() bool { return promoted.XLen(t.Context(), b.keys.Log(0)).Val() == 10 })
			gaps := 0
			if behind {
				if err := promoted.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err(); err != nil {
					t.Fatal(err)
				}
				mustAppend(t, b, notes("h", 11, 15)...)
				gaps = 1
				eventually(t, "what is lost seen", func() bool { n, _ := r.count(); return n == 15 })
			} else if err := promoted.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err(); err != nil {
				t.Fatal(err)
			}
			for i := 101; i <= 120; i++ { // more than was lost, and later
				if err := promoted.Do(t.Context(), addArgs(b.keys.Log(0), new(note("h", i)))...).Err(); err != nil {
					t.Fatal(err)
				}
			}
			target.Store(replica)
			primary.Kill()
			eventually(t, "stored", func() bool {
				_, err := b.Append(t.Context(), Append{Hub: "h", Key: "k", Notifications: notes("h", 121, 121)})
				return err == nil
			})
			eventually(t, "the newest seen, and a gap only where something was lost", func() bool {
				r.mu.Lock()
				defer r.mu.Unlock()
				return r.ids[len(r.ids)-1] == note("h", 121).ID && r.gaps == gaps
			})
			r.mu.Lock()
			defer r.mu.Unlock()
			if fresh := r.ids[len(r.ids)-21:]; len(r.ids) != 31+5*gaps || fresh[0] != note("h", 101).ID {
				t.Errorf("%d were read, the new history from %s on", len(r.ids), fresh[0])
			}
		})
	}
}

// What a promoted replica has stored since may have smaller ids than what was read: by a clock that is behind, or by chance in
// the same millisecond. It is read, behind the word about the loss.
func TestTailReadsSmallerIDsOfANewHistory(t *testing.T) {
	t.Parallel()
	for name, ids := range map[string][]string{
		"behind":    {"900-0", "950-0"},            // the newest is before the position
		"the same":  {"900-0", "1000-5"},           // at the position is another
		"passed it": {"900-0", "1000-3", "2000-0"}, // the position is not there any more
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t, "--appendfsync", "always")
			b := open(t, s, Options{})
			add := func(at string, n int) {
				args := append([]any{"XADD", b.keys.Log(0), at}, addArgs(b.keys.Log(0), new(note("h", n)))[3:]...)
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
			eventually(t, "the first history seen", func() bool { n, _ := r.count(); return n == 4 })
			s.Kill()
			s.Restart()
			other := s.Client()
			for i, id := range ids {
				args := append([]any{"XADD", b.keys.Log(0), id}, addArgs(b.keys.Log(0), new(note("h", 21+i)))[3:]...)
				if err := other.Do(t.Context(), args...).Err(); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "all of the new history seen", func() bool { n, g := r.count(); return n >= 4+len(ids) && g > 0 })
			r.mu.Lock()
			defer r.mu.Unlock()
			for i := range ids {
				if want := note("h", 21+i).ID; r.ids[4+i] != want {
					t.Errorf("%s comes where %s belongs", r.ids[4+i], want)
				}
			}
			if len(r.ids) != 4+len(ids) {
				t.Errorf("read %q", r.ids)
			}
		})
	}
}

// Traffic that never stops must not hide that the log was begun anew.
func TestTailNoticesAFlushBelowTraffic(t *testing.T) {
	b := open(t, redistest.Start(t), Options{})
	r := follow(t, b, "0-0")
	mustAppend(t, b, notes("h", 1, 10)...)
	eventually(t, "all seen", func() bool { n, _ := r.count(); return n == 10 })
	_, err := b.Commands().TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.FlushAll(t.Context())
		for i := range 30 {
			p.Do(t.Context(), addArgs(b.keys.Log(0), new(note("h", 11+i)))...)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	i := 100
	eventually(t, "the gap seen", func() bool {
		i++
		mustAppend(t, b, note("h", i))
		_, g := r.count()
		return g == 1
	})
}
