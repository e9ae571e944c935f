package logcache

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
)

const patience = 30 * time.Second

// heldLog is a log whose reads wait until the test supplies their result.
type heldLog chan chan found

type found struct {
	lost bool
	list []relay.Notification
}

func (l heldLog) ReadFrom(_ context.Context, _ int, after streamid.Position, _ int) (
	streamid.Position, bool, []relay.Notification, error,
) {
	read := make(chan found)
	l <- read
	f := <-read
	return after, f.lost, f.list, nil
}

func (l heldLog) next(t *testing.T) chan<- found {
	t.Helper()
	select {
	case read := <-l:
		return read
	case <-time.After(patience):
		t.Fatal("the log was not read")
		return nil
	}
}

// A read that started before an invalidation serves neither the callers during the read nor the callers after it.
func TestInvalidate_DetachesReadsInFlight(t *testing.T) {
	t.Parallel()
	log := make(heldLog, 1)
	h := New(log, 1<<20)
	owner := 0
	ask := func(partition int) <-chan bool {
		lost := make(chan bool, 1)
		owner++ // the reads of one owner would wait for each other
		name := fmt.Sprint(owner)
		go func() {
			_, _, gone, err := h.ReadFrom(t.Context(), name, partition, streamid.Position{MS: 1})
			if err != nil {
				t.Error(err)
			}
			lost <- gone
		}()
		return lost
	}
	old := found{list: []relay.Notification{{Cursor: "2-0", Data: []byte("{}")}}}
	before := ask(0)
	readBefore := log.next(t)
	other := ask(1)
	readOther := log.next(t)
	h.Invalidate(0)
	during := ask(0)
	log.next(t) <- found{lost: true}
	readBefore <- old
	readOther <- old
	if <-before || <-other || !<-during {
		t.Error("a caller got another result than its read")
	}
	after := ask(0)
	log.next(t) <- found{lost: true}
	if !<-after {
		t.Error("a read from before the invalidation was used")
	}
	if <-ask(1) { // without a read
		t.Error("a segment of another partition was removed")
	}
}

// slowLog is a log. Each read takes a millisecond and returns one entry.
type slowLog struct{ reads atomic.Int32 }

func (l *slowLog) ReadFrom(_ context.Context, _ int, after streamid.Position, _ int) (
	streamid.Position, bool, []relay.Notification, error,
) {
	time.Sleep(time.Millisecond)
	l.reads.Add(1)
	return after, false, []relay.Notification{{Cursor: fmt.Sprintf("%d-0", after.MS+1), Data: []byte("{}")}}, nil
}

// Many replays of one owner, at different positions, delay a replay of another owner by a few reads only, also if it needs the same
// position.
func TestCache_OwnersTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &slowLog{}
		c := New(log, 1) // keeps nothing
		var replays sync.WaitGroup
		for i := range uint64(1000) {
			replays.Go(func() {
				if _, _, _, err := c.ReadFrom(t.Context(), "many", 0, streamid.Position{MS: 10 * i}); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		for _, read := range []func(owner string) error{
			func(owner string) error {
				_, _, _, err := c.ReadFrom(t.Context(), owner, 0, streamid.Position{MS: 1})
				return err
			},
			func(owner string) error {
				_, _, _, err := c.ReadFrom(t.Context(), owner, 0, streamid.Position{MS: 9990})
				return err
			},
			func(owner string) error {
				_, _, err := c.Verify(t.Context(), owner, 0, streamid.Position{MS: 2})
				return err
			},
		} {
			before := log.reads.Load()
			if err := read("one"); err != nil {
				t.Fatal(err)
			}
			if n := log.reads.Load() - before; n > 3 { // its own, and one of the other owner at each end of it
				t.Errorf("%d reads ended in the meantime, want at most 3", n)
			}
		}
		replays.Wait()
	})
}

// Owners share the reads of a position.
func TestCache_OwnersShareReads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &slowLog{}
		c := New(log, 1<<20)
		var replays sync.WaitGroup
		for i := range 100 {
			replays.Go(func() {
				if _, _, _, err := c.ReadFrom(t.Context(), fmt.Sprint(i%10), 0, streamid.Position{MS: 1}); err != nil {
					t.Error(err)
				}
			})
		}
		replays.Wait()
		if n := log.reads.Load(); n != 1 {
			t.Errorf("the log was read %d times, want once", n)
		}
	})
}

// Reads whose callers have left do not take place, so they do not delay others. A caller that stays gets its result.
func TestCache_ReadsEndWithTheirCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &slowLog{}
		c := New(log, 1<<20)
		ctx, leave := context.WithCancel(t.Context())
		var callers sync.WaitGroup
		for i := range uint64(1000) {
			callers.Go(func() {
				if _, _, _, err := c.ReadFrom(ctx, "many", 0, streamid.Position{MS: 10 * (i / 2)}); err == nil && ctx.Err() == nil {
					t.Error("a read ended too early")
				}
			})
			callers.Go(func() { _, _, _ = c.Verify(ctx, "many", 0, streamid.Position{MS: 10*i + 5}) })
		}
		stays := make(chan error, 1)
		go func() {
			_, _, _, err := c.ReadFrom(t.Context(), "many", 0, streamid.Position{MS: 4990})
			stays <- err
		}()
		synctest.Wait()
		leave()
		callers.Wait()
		if err := <-stays; err != nil {
			t.Errorf("the read of a caller that stays: %v", err)
		}
		if n := log.reads.Load(); n > 3 { // one was taking place
			t.Errorf("the log was read %d times, want at most 3 times", n)
		}
		if len(c.flights) != 0 {
			t.Errorf("%d reads are remembered", len(c.flights))
		}
	})
}
