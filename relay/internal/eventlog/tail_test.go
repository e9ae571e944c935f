package eventlog

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/resp"
)

// recorder stores the batches of a reader.
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

func (r *recorder) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.ids)
}

// follow reads the log from a position until the end of the test.
func follow(t *testing.T, b *testLog, from string) *recorder {
	t.Helper()
	return record(t, func(ctx context.Context, fn func(Batch)) error { return tailFrom(ctx, b, 0, from, fn) })
}

// tailFrom follows the log from any position.
func tailFrom(ctx context.Context, l *testLog, partition int, from string, fn func(Batch)) error {
	return newTailReader(l.Log, partition, fn).run(ctx, from, -1)
}

func record(t *testing.T, tail func(context.Context, func(Batch)) error) *recorder {
	t.Helper()
	r := &recorder{}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tail(ctx, r.add)
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
			t.Fatalf("entry %d: got ID %s, want %s", i, id, want)
		}
	}
	if len(r.ids) != to-from+1 || r.gaps != gaps {
		t.Errorf("got %d entries and %d gaps, want %d and %d", len(r.ids), r.gaps, to-from+1, gaps)
	}
	for i := 1; i < len(r.batches); i++ {
		if r.batches[i].Prev != r.batches[i-1].Last {
			t.Errorf("batch %d: got Prev %s, want %s", i, r.batches[i].Prev, r.batches[i-1].Last)
		}
	}
}

func TestTail_ReadsAllEntries(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *testLog) {
		mustAppend(t, b, notifications("h", 1, 700)...)
		all := follow(t, b, "0-0")
		_, tail, err := b.TailFrom(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		mustAppend(t, b, notifications("h", 701, 710)...)
		late := record(t, tail)
		testkit.WaitFor(t, "all entries", func() bool {
			n, _ := all.count()
			m, _ := late.count()
			return n == 710 && m == 10
		})
		all.check(t, 1, 710, 0)
		late.check(t, 701, 710, 0)
	})
}

func TestTail_ContinuesAfterRestart(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := open(t, s, redisconn.Options{})
	r := follow(t, b, "0-0")
	mustAppend(t, b, notifications("h", 1, 10)...)
	testkit.WaitForValue(t, "the first entries", 10, func() int { n, _ := r.count(); return n })
	s.Kill()
	s.Restart()
	testkit.WaitFor(t, "an append to succeed", func() bool {
		_, err := b.Append(t.Context(), AppendRequest{Hub: "h", Notifications: notifications("h", 11, 20)})
		return err == nil
	})
	testkit.WaitForValue(t, "the other entries", 20, func() int { n, _ := r.count(); return n })
	r.check(t, 1, 20, 0)
}

func TestTail_DetectsLossAfterRestart(t *testing.T) {
	t.Parallel()
	for _, written := range []bool{false, true} {
		t.Run(fmt.Sprintf("written=%t", written), func(t *testing.T) {
			// Without the append-only file, a restart loses new entries.
			s := redistest.Start(t)
			b := open(t, s, redisconn.Options{})
			r := follow(t, b, "0-0")
			mustAppend(t, b, notifications("h", 1, 10)...)
			if err := b.Commands().ConfigSet(t.Context(), "appendonly", "no").Err(); err != nil {
				t.Fatal(err)
			}
			mustAppend(t, b, notifications("h", 101, 105)...)
			testkit.WaitForValue(t, "all entries", 15, func() int { n, _ := r.count(); return n })
			s.Kill()
			s.Restart()
			if !written {
				testkit.WaitForValue(t, "the gap", 1, func() int { _, g := r.count(); return g })
			}
			testkit.WaitFor(t, "an append to succeed", func() bool {
				list := notifications("h", 201, 201)
				_, err := b.Append(t.Context(), AppendRequest{Hub: "h", Notifications: list})
				return err == nil
			})
			testkit.WaitFor(t, "the gap and the next entry", func() bool {
				n, gaps := r.count()
				return n == 16 && gaps == 1
			})
		})
	}
}

func TestTail_DetectsFlush(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	r := follow(t, b, "0-0")
	mustAppend(t, b, notifications("h", 1, 10)...)
	testkit.WaitForValue(t, "all entries", 10, func() int { n, _ := r.count(); return n })
	if err := b.Commands().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	testkit.WaitForValue(t, "the gap", 1, func() int { _, g := r.count(); return g })
	mustAppend(t, b, notifications("h", 11, 12)...)
	testkit.WaitForValue(t, "the other entries", 12, func() int { n, _ := r.count(); return n })
}

func TestTail_ReportsTrimmedEntries(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	ctx := t.Context()
	mustAppend(t, b, notifications("h", 1, 10)...)
	from := readLog(t, b, 0)[4].Cursor
	trim := func(n int64) {
		if err := b.Commands().XTrimMaxLen(ctx, Key(b.Keys(), 0), n).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if ok, err := b.HasRangeAfter(ctx, 0, from); !ok || err != nil {
		t.Errorf("HasRangeAfter before the trim: got %t, %v, want true", ok, err)
	}
	trim(3)
	r := follow(t, b, from)
	testkit.WaitForValue(t, "the other entries", 3, func() int { n, _ := r.count(); return n })
	r.check(t, 8, 10, 1)
	if ok, err := b.HasRangeAfter(ctx, 0, from); ok || err != nil {
		t.Errorf("HasRangeAfter after the trim: got %t, %v, want false", ok, err)
	}
	// Trimming entries that were read is no gap.
	mustAppend(t, b, notifications("h", 11, 11)...)
	testkit.WaitForValue(t, "the new entry", 4, func() int { n, _ := r.count(); return n })
	trim(0)
	mustAppend(t, b, notifications("h", 12, 12)...)
	testkit.WaitForValue(t, "the new entry", 5, func() int { n, _ := r.count(); return n })
	r.check(t, 8, 12, 1)
}

// If all entries expired before the reader started, the next entry is no gap.
func TestTail_NoGapAfterEmptyLog(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	mustAppend(t, b, notifications("h", 1, 3)...)
	if err := b.Commands().XTrimMaxLen(t.Context(), Key(b.Keys(), 0), 0).Err(); err != nil {
		t.Fatal(err)
	}
	_, tail, err := b.TailFrom(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	mustAppend(t, b, notification("h", 4))
	r := record(t, tail)
	testkit.WaitForValue(t, "the entry", 1, func() int { n, _ := r.count(); return n })
	r.check(t, 4, 4, 0)
}

// A gap at the end of the log is reported before the next entry.
func TestTail_ReportsGapAtEnd(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	mustAppend(t, b, notifications("h", 1, 3)...)
	r := follow(t, b, streamid.Zero)
	testkit.WaitForValue(t, "the first entries", 3, func() int { n, _ := r.count(); return n })
	addAndDelete := redis.NewScript(`
		local id = redis.call("XADD", KEYS[1], "*", "id", "lost")
		return redis.call("XDEL", KEYS[1], id)`)
	if err := addAndDelete.Run(t.Context(), b.Commands(), []string{Key(b.Keys(), 0)}).Err(); err != nil {
		t.Fatal(err)
	}
	testkit.WaitForValue(t, "the gap", 1, func() int { _, g := r.count(); return g })
	mustAppend(t, b, notifications("h", 4, 5)...)
	testkit.WaitForValue(t, "the following entries", 5, func() int { n, _ := r.count(); return n })
	r.check(t, 1, 5, 1)
}

func TestTail_ReportsTrimWhileLagging(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	mustAppend(t, b, notifications("h", 1, 600)...)
	r := &recorder{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var once sync.Once
	err := tailFrom(ctx, b, 0, "0-0", func(batch Batch) {
		r.add(batch)
		once.Do(func() {
			if err := b.Commands().XTrimMaxLen(ctx, Key(b.Keys(), 0), 10).Err(); err != nil {
				t.Error(err)
			}
		})
		if batch.Last == readLog(t, b, 0)[9].Cursor {
			cancel()
		}
	})
	if n, gaps := r.count(); n != maxTailRead+10 || gaps != 1 {
		t.Errorf("got %d entries, %d gaps, %v, want %d entries and one gap", n, gaps, err, maxTailRead+10)
	}
}

// A reader lags from a full read until it reaches the end.
func TestTail_IsLagging(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	mustAppend(t, b, notifications("h", 1, 600)...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, reads := &recorder{}, make(chan bool, 2)
	done := make(chan error, 1)
	go func() {
		done <- tailFrom(ctx, b, 0, "0-0", func(batch Batch) {
			r.add(batch)
			reads <- b.IsLagging(0)
		})
	}()
	if first, second := <-reads, <-reads; !first || second {
		t.Errorf("lags after the first read: %t, after the second: %t", first, second)
	}
	if b.IsLagging(time.Hour) {
		t.Error("lags for an hour")
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestLog_HasReadOthers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		accounts []string
		want     bool
	}{
		"only its own":    {[]string{"flood", "flood"}, false},
		"of none":         {[]string{"", "flood", "flood"}, true},
		"of another":      {[]string{"flood", "small", "flood"}, true},
		"of the last one": {[]string{"flood", "small"}, true},
	} {
		b := open(t, redistest.Start(t), redisconn.Options{})
		for i, account := range tt.accounts {
			n := notifications("h", i+1, i+1)
			n[0].Account = account
			mustAppend(t, b, n...)
		}
		if b.HasReadOthers("flood", time.Hour) {
			t.Errorf("%s: others were read before the start", name)
		}
		ctx, cancel := context.WithCancel(t.Context())
		read := 0
		_ = tailFrom(ctx, b, 0, "0-0", func(batch Batch) {
			if read += len(batch.Notifications); read == len(tt.accounts) {
				cancel()
			}
		})
		if got := b.HasReadOthers("flood", time.Hour); got != tt.want {
			t.Errorf("%s: got %t, want %t", name, got, tt.want)
		}
		if b.HasReadOthers("flood", 0) {
			t.Errorf("%s: others were read in no time", name)
		}
		cancel()
	}
}

// A server that hangs must not delay the end of a reader, whether it reads or connects.
func TestTail_EndsWhileRedisHangs(t *testing.T) {
	t.Parallel()
	for _, connected := range []bool{true, false} {
		t.Run(fmt.Sprintf("connected=%t", connected), func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			var dials atomic.Int64
			b := openOptions(t, redisconn.Options{Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
				dials.Add(1)
				return (&net.Dialer{}).DialContext(ctx, "unix", s.Socket)
			}})
			mustAppend(t, b, notifications("h", 1, 1)...)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r, ended := &recorder{}, make(chan struct{})
			tail := func() {
				defer close(ended)
				_ = tailFrom(ctx, b, 0, streamid.Zero, r.add)
			}
			if connected {
				go tail()
				testkit.WaitForValue(t, "the first entries", 1, func() int { n, _ := r.count(); return n })
				admin := s.Client()
				testkit.WaitFor(t, "the reader to block", func() bool {
					return strings.Contains(admin.ClientList(t.Context()).Val(), " flags=b")
				})
			}
			s.Signal(syscall.SIGSTOP)
			defer s.Signal(syscall.SIGCONT)
			if before := dials.Load(); !connected {
				go tail()
				testkit.WaitFor(t, "the reader to connect", func() bool { return dials.Load() > before })
			}
			start := time.Now()
			cancel()
			<-ended
			if d := time.Since(start); d >= resp.Timeout { // it would have ended then anyway
				t.Errorf("the reader ended after %s, want less than %s", d, resp.Timeout)
			}
		})
	}
}

// A flush must be detected although new entries arrive all the time.
func TestTail_DetectsFlushDuringTraffic(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	// This reader knows the number of entries from the start. A reader from a position might miss an early flush.
	_, tail, err := b.TailFrom(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	r := record(t, tail)
	mustAppend(t, b, notifications("h", 1, 10)...)
	testkit.WaitForValue(t, "all entries", 10, func() int { n, _ := r.count(); return n })
	_, err = b.Commands().TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.FlushAll(t.Context())
		for i := range 30 {
			p.Do(t.Context(), addArgs(Key(b.Keys(), 0), new(notification("h", 11+i)), "")...)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	i := 100
	testkit.Eventually(t, "the gap", func() error {
		i++
		mustAppend(t, b, notification("h", i))
		if n, gaps := r.count(); gaps != 1 {
			return fmt.Errorf("got %d gaps after %d entries, want one", gaps, n)
		}
		return nil
	})
}
