package pipeline

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// ofHub returns the i-th delivery of a hub.
func ofHub(hub string, i int) relay.Delivery {
	id := fmt.Sprintf("%s-%06d", hub, i)
	return relay.Delivery{ID: id, Attempt: 1, Notifications: []relay.Notification{{
		ID: id, Topic: "container.error", Hub: hub, Cursor: fmt.Sprintf("%d-0", i+1),
		Data: []byte(`{"context":{"containers":["` + hub + `"]}}`),
	}}}
}

// queue is a fake sink queue. It returns unacked deliveries in order, one at a time per key.
type queue struct {
	mu   sync.Mutex
	keys []string
	left map[string][]relay.Delivery
}

func newQueue(hubs, each int) *queue {
	q := &queue{left: make(map[string][]relay.Delivery)}
	for h := range hubs {
		hub := fmt.Sprint("hub", h)
		q.keys = append(q.keys, hub)
		q.add(hub, 0, each)
	}
	return q
}

func (q *queue) add(hub string, from, to int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := from; i < to; i++ {
		q.left[hub] = append(q.left[hub], ofHub(hub, i))
	}
}

func (q *queue) first(hub string) (relay.Delivery, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.left[hub]) == 0 {
		return relay.Delivery{}, false
	}
	return q.left[hub][0], true
}

func (q *queue) ack(hub string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.left[hub] = q.left[hub][1:]
}

func (q *queue) length() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, list := range q.left {
		n += len(list)
	}
	return n
}

// feed passes the queue to p until ctx ends, as a router does.
func (q *queue) feed(ctx context.Context, p *Pipeline) error {
	var keys sync.WaitGroup
	for _, hub := range q.keys {
		keys.Go(func() {
			for ctx.Err() == nil {
				d, ok := q.first(hub)
				if ok && handleDelivery(ctx, p, d) == nil {
					q.ack(hub)
					continue
				}
				select {
				case <-ctx.Done():
				case <-time.After(time.Millisecond):
				}
			}
		})
	}
	keys.Wait()
	return nil
}

// lead makes p the leader until the test ends, or until stop (as a daemon stops) or lose (as a lease is lost) is
// called.
func (e *env) lead(p *Pipeline, q *queue) (stop, lose func()) {
	e.t.Helper()
	endRetries := e.retries(p)
	held, cut := context.WithCancel(context.Background())
	ctx, cancel := context.WithCancel(held)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := p.RunAsLeader(ctx, held, func(ctx context.Context) error { return q.feed(ctx, p) }); err != nil &&
			ctx.Err() == nil {
			e.t.Error(err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); endRetries(); <-done; cut() })
	e.t.Cleanup(stop)
	return stop, func() { cut(); <-done }
}

// successes records the delivered IDs in order.
type successes struct {
	mu    sync.Mutex
	list  map[string][]string // IDs by hub
	now   map[string]int
	both  int // how often two deliveries of a hub were in flight
	total int
}

// around calls deliver and records its successes.
func (s *successes) around(answer func(context.Context, relay.Delivery) error) *fakeSink {
	s.list, s.now = make(map[string][]string), make(map[string]int)
	return &fakeSink{answer: func(ctx context.Context, d relay.Delivery) error {
		hub := d.Notifications[0].Hub
		s.mu.Lock()
		s.now[hub]++
		if s.now[hub] > 1 {
			s.both++
		}
		s.mu.Unlock()
		err := answer(ctx, d)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.now[hub]--
		if err == nil {
			s.list[hub] = append(s.list[hub], d.ID)
			s.total++
		}
		return err
	}}
}

func (s *successes) of(hub string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.list[hub])
}

func (s *successes) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

// check checks that the first successes of each hub are complete and in order, and how many were repeated.
func (s *successes) check(t *testing.T, hubs, each, again int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	twice := 0
	for h := range hubs {
		hub := fmt.Sprint("hub", h)
		seen := map[string]bool{}
		var firsts []string
		for _, id := range s.list[hub] {
			if seen[id] {
				twice++
				continue
			}
			seen[id] = true
			firsts = append(firsts, id)
		}
		if len(firsts) != each || !slices.IsSorted(firsts) {
			t.Errorf("%s: %d arrived, want %d; in order: %v", hub, len(firsts), each, slices.IsSorted(firsts))
		}
	}
	if twice > again {
		t.Errorf("%d were repeated, want at most %d", twice, again)
	}
}

// flaky fails about a third of the attempts, the same ones every time.
func flaky(_ context.Context, d relay.Delivery) error {
	h := fnv.New32a()
	_, _ = fmt.Fprintf(h, "%s/%d", d.ID, d.Attempt)
	if h.Sum32()%3 == 0 && d.Attempt < 5 {
		return &relay.ResponseError{Status: 409}
	}
	return nil
}

func ordered(by store.Ordering) func(*Options) {
	return func(o *Options) {
		o.Ordering, o.Concurrency = by, 16
		o.Schedule = Schedule{Delays: slices.Repeat([]time.Duration{time.Millisecond}, 10)}
	}
}

// idle reports whether the retry queue of an ordered sink is empty.
func (e *env) idle() bool {
	n, err := e.client.ZCard(e.t.Context(), "hubrelay:order:s").Result()
	m, err2 := e.client.HLen(e.t.Context(), "hubrelay:ordermembers:s").Result()
	if err := errors.Join(err, err2); err != nil {
		e.t.Fatal(err)
	}
	return e.scheduledCount() == 0 && n == 0 && m <= 1 // the counter stays
}
