package clients

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// A replay to a client that does not read queues little, and sends everything once the client reads. Other clients
// receive live notifications.
func TestSlowResumer(t *testing.T) {
	t.Parallel()
	const count, padding = 1000, 16_000
	for _, most := range []int{1, 64 << 20} {
		r := startRelayed(
			t,
			redistest.Start(t),
			1,
			Options{QueueBytes: 128 << 10, HistoryBytes: most, WriteTimeout: patience},
		)
		first := r.dial(t, "hub=h&account=a&cursor=true")
		r.publish(t, "h", 0, 1, 0)
		from := next(t, first).Cursor
		_ = first.Close()
		for i := 1; i < count; i += 50 {
			r.publish(t, "h", i, min(50, count-i), padding)
		}
		r.settled(t)
		slow, other := r.dial(t, "hub=h&account=a&after="+from), r.dial(t, "hub=other&account=a")
		var c *connection
		testkit.WaitFor(t, "the replay to be stuck", func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			for c = range r.connections {
				if c.replay != nil {
					break
				}
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.writing && c.replay != nil
		})
		for i := range 20 {
			r.publish(t, "other", i, 1, padding)
			expect(t, other, i, i)
			c.mu.Lock()
			if most := replayChunkBytes + padding + 1000; c.queue.size > most {
				t.Errorf("%d bytes are queued, want no more than %d", c.queue.size, most)
			}
			c.mu.Unlock()
		}
		for i := 1; i < count; i++ {
			_, data, err := slow.ReadMessage()
			if err != nil || !bytes.HasPrefix(data, fmt.Appendf(nil, `{"topic":"job.created","n":%d,`, i)) {
				t.Fatalf("got %.100s, want number %d: %v", data, i, err)
			}
		}
		r.publish(t, "h", count, 1, 0)
		expect(t, slow, count, count)
	}
}

// Two hundred replays at different positions of a log that is not in memory share reads.
func TestManyResumersShareReads(t *testing.T) {
	t.Parallel()
	const clients, count, most = 200, 600, 40
	r := startRelayed(t, redistest.Start(t), 1, Options{HistoryBytes: 8 << 20})
	first := r.dial(t, "hub=h&account=a&cursor=true")
	r.publish(t, "h", 0, count, 100)
	all := expect(t, first, 0, count-1)
	r.settled(t)
	r.feeds[0].mu.Lock()
	kept := r.feeds[0].maxBytes
	r.feeds[0].maxBytes = 1 // as after a restart
	r.feeds[0].evictOldest()
	r.feeds[0].maxBytes = kept
	r.feeds[0].mu.Unlock()
	live := r.dial(t, "hub=live&account=a")
	var done sync.WaitGroup
	for i := range clients {
		conn := r.dial(t, "hub=h&account=a&after="+all[i*2].Cursor)
		done.Go(func() {
			for n := i*2 + 1; n <= count; n++ {
				if m, err := read(conn); err != nil || m.N != n {
					t.Errorf("client %d got %.100s, want %d: %v", i, m.text, n, err)
					return
				}
			}
		})
	}
	var worst time.Duration
	for i := range 20 {
		began := time.Now()
		r.publish(t, "live", i, 1, 0)
		expect(t, live, i, i)
		worst = max(worst, time.Since(began))
	}
	r.publish(t, "h", count, 1, 0)
	done.Wait()
	if n := r.reads.Load(); n == 0 || n > most {
		t.Errorf("the log was read %d times for %d clients, want at most %d", n, clients, most)
	}
	t.Logf("%d reads for %d clients; others waited %s at most", r.reads.Load(), clients, worst)
}
