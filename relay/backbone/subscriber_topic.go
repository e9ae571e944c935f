package backbone

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// topic is the queue of entries in memory of one topic, and who takes them.
type topic struct {
	s       *Subscriber
	name    string
	sources []*source

	mu      sync.Mutex
	active  *subscription
	lanes   int // of the active subscription
	most    int // acks that may be unstored before its lanes take no more
	standby []*subscription
	ready   deque                    // entries a free lane may take
	behind  map[string][]*queueEntry // by key: entries that wait for one of the same key; a present key is in flight or ready
	parked  int                      // entries in behind
	running int                      // lanes of the active subscription
	acked   int                      // entries that lanes have acked, less those whose ack is stored
	starved bool                     // the reader left this topic out for want of room
}

func newTopic(s *Subscriber, name string) *topic {
	return &topic{s: s, name: name, lanes: 1, behind: make(map[string][]*queueEntry)}
}

// subscription is one call of Subscribe.
type subscription struct {
	t      *topic
	lanes  int
	most   int
	out    chan *message.Message
	ctx    context.Context // ends when messages in handlers' hands are given back
	cancel context.CancelFunc
	base   context.Context // parent of the messages' contexts, without an end: to link each to ctx costs more
	ending chan struct{}   // closed when no more messages are to be handed out
	done   chan struct{}   // closed when nothing of it is left
	ended  bool            // ending is closed; guarded by t.mu
}

func (t *topic) subscribe(ctx context.Context) *subscription {
	sub := &subscription{
		t:      t,
		lanes:  max(1, t.s.cfg.Lanes(t.name)),
		most:   max(1, t.s.cfg.Unstored(t.name)),
		out:    make(chan *message.Message),
		ending: make(chan struct{}),
		done:   make(chan struct{}),
	}
	// The end of ctx starts the Grace; only after that do the messages' contexts end.
	sub.base = context.WithoutCancel(ctx)
	sub.ctx, sub.cancel = context.WithCancel(sub.base)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.active != nil {
		t.standby = append(t.standby, sub)
		return sub
	}
	t.active, t.lanes, t.most = sub, sub.lanes, sub.most
	return sub
}

func (t *topic) subscriptions() []*subscription {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.active == nil {
		return nil
	}
	return append([]*subscription{t.active}, t.standby...)
}

func (t *topic) idle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.active == nil
}

// over says whether nobody will take what is read now.
func (t *topic) over() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.overLocked()
}

func (t *topic) overLocked() bool { return t.active == nil || t.active.ended && len(t.standby) == 0 }

// hasRoom says whether the reader may fetch more, and remembers a no so that the next free lane wakes the reader.
func (t *topic) hasRoom() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	ok := t.roomLocked()
	if !ok {
		t.starved = true
	}
	return ok
}

func (t *topic) roomLocked() bool { return t.ready.len()+t.parked < max(t.lanes, roomCount) }

// add queues entries that were just read, and starts lanes for them.
func (t *topic) add(entries []*queueEntry, returns int) {
	if len(entries) == 0 {
		return
	}
	if t.s.cfg.Key != nil { // before the lock, which every lane wants
		for _, e := range entries {
			e.key = t.s.cfg.Key(t.name, e.message())
		}
	}
	t.mu.Lock()
	// What comes behind entries that are being given back is given back as well, and read after them.
	if t.overLocked() || entries[0].src.overtaken(returns) {
		leave(entries)
		t.mu.Unlock()
		t.s.settle.release(entries)
		return
	}
	for _, e := range entries {
		t.queueLocked(e)
	}
	t.startLanesLocked()
	t.mu.Unlock()
}

func (t *topic) queueLocked(e *queueEntry) {
	if e.key != "" {
		if line, busy := t.behind[e.key]; busy {
			t.behind[e.key] = append(line, e)
			t.parked++
			return
		}
		t.behind[e.key] = nil
	}
	t.ready.pushBack(e)
}

func (t *topic) startLanesLocked() {
	if t.active == nil || t.active.ended || t.acked > t.most {
		return
	}
	for n := min(t.lanes-t.running, t.ready.len()); n > 0; n-- {
		t.running++
		go t.active.lane()
	}
}

// next returns the entry that a lane works on next, after the lane has acked done (nil at first); nil ends the lane.
func (t *topic) next(sub *subscription, done *queueEntry) *queueEntry {
	t.mu.Lock()
	if done != nil {
		t.acked++
		if done.key != "" {
			t.unblockLocked(done.key)
		}
	}
	if sub.ended || t.ready.len() == 0 || t.acked > t.most {
		t.leaveLocked(sub)
		t.s.settle.hurry() // there is nothing to gather for, or too much was
		return nil
	}
	e := t.ready.popFront()
	t.unlockAndRefill()
	return e
}

// stored tells that the acks of n entries are in Redis, and lets lanes go on that ended because too many were not.
func (t *topic) stored(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.acked -= n
	t.startLanesLocked()
}

func (t *topic) unblockLocked(key string) {
	line := t.behind[key]
	if len(line) == 0 {
		delete(t.behind, key)
		return
	}
	t.ready.pushBack(line[0])
	t.behind[key] = line[1:]
	t.parked--
}

// giveBack puts an entry that its lane could not finish at the head of the queue, for the next subscription.
func (t *topic) giveBack(e *queueEntry) {
	t.mu.Lock()
	t.ready.pushFront(e)
	t.mu.Unlock()
}

func (t *topic) wakeReaders() {
	for _, src := range t.sources {
		if r := src.reader.Load(); r != nil {
			r.wake()
		}
	}
}

// leaveLocked ends a lane and unlocks.
func (t *topic) leaveLocked(sub *subscription) {
	t.running--
	if sub.ended && t.running == 0 {
		t.finishLocked(sub)
		return
	}
	t.unlockAndRefill()
}

// unlockAndRefill unlocks, and wakes the readers where they left the topic out and it has room again.
func (t *topic) unlockAndRefill() {
	wake := t.starved && t.roomLocked()
	if wake {
		t.starved = false
	}
	t.mu.Unlock()
	if wake {
		t.wakeReaders()
	}
}

// finishLocked hands the topic to the next subscription, or gives all entries back, and unlocks.
func (t *topic) finishLocked(sub *subscription) {
	t.active = nil
	var left []*queueEntry
	if len(t.standby) > 0 {
		t.active, t.standby = t.standby[0], t.standby[1:]
		t.lanes, t.most = t.active.lanes, t.active.most
		t.startLanesLocked()
	} else {
		left = t.ready.drain()
		for _, line := range t.behind {
			left = append(left, line...)
		}
		clear(t.behind)
		t.parked = 0
		leave(left)
	}
	t.mu.Unlock()

	sub.cancel()
	if len(left) > 0 {
		t.s.settle.release(left)
	}
	t.s.detach(t)
	close(sub.out)
	close(sub.done)
}

// end lets the subscription hand out no more messages. It does not wait.
func (sub *subscription) end() {
	t := sub.t
	t.mu.Lock()
	if sub.ended {
		t.mu.Unlock()
		return
	}
	sub.ended = true
	close(sub.ending)
	for i, other := range t.standby {
		if other == sub {
			t.standby = append(t.standby[:i:i], t.standby[i+1:]...)
			t.mu.Unlock()
			sub.cancel()
			close(sub.out)
			close(sub.done)
			return
		}
	}
	if t.running == 0 {
		t.finishLocked(sub)
		return
	}
	t.mu.Unlock()
	if grace := t.s.cfg.Grace; grace > 0 {
		timer := time.AfterFunc(grace, sub.cancel)
		context.AfterFunc(sub.ctx, func() { timer.Stop() })
		return
	}
	sub.cancel()
}

// lane hands out one message after the other until the queue is empty or the subscription ends.
func (sub *subscription) lane() {
	e := sub.t.next(sub, nil)
	for e != nil {
		if sub.hand(e) {
			e = sub.t.next(sub, e)
			continue
		}
		sub.t.giveBack(e)
		e = sub.t.next(sub, nil)
	}
}

// hand gives the entry to the handler until it is acked. It returns false when the subscription ended before.
func (sub *subscription) hand(e *queueEntry) bool {
	for {
		msg := e.message()
		e.msg = nil // a handler may change it: the next time gets a new one
		ctx, cancel := context.WithCancel(sub.base)
		msg.SetContext(ctx)
		select {
		case sub.out <- msg:
		case <-sub.ending:
			cancel()
			return false
		}
		if sub.t.ackedAlready(e, msg) {
			cancel()
			return true
		}
		select {
		case <-msg.Acked():
			cancel()
			sub.t.s.settle.ack(e)
			return true
		case <-msg.Nacked():
			cancel()
		case <-sub.ctx.Done():
			cancel()
			return sub.t.ackedAlready(e, msg)
		}
		if !sub.pause(sub.t.s.cfg.NackDelay) {
			return false
		}
	}
}

// ackedAlready honours an ack without waiting for one: a quick handler's, or one that came together with the end.
func (t *topic) ackedAlready(e *queueEntry, msg *message.Message) bool {
	select {
	case <-msg.Acked():
		t.s.settle.ack(e)
		return true
	default:
		return false
	}
}

func (sub *subscription) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-sub.ending:
		return false
	}
}

// deque is a queue of entries with a cheap front on both ends. Its zero value is empty.
type deque struct {
	list []*queueEntry
	head int
}

func (q *deque) len() int { return len(q.list) - q.head }

func (q *deque) pushBack(e *queueEntry) {
	if q.head > 0 && len(q.list) == cap(q.list) {
		n := copy(q.list, q.list[q.head:])
		clear(q.list[n:])
		q.list, q.head = q.list[:n], 0
	}
	q.list = append(q.list, e)
}

func (q *deque) pushFront(e *queueEntry) {
	if q.head > 0 {
		q.head--
		q.list[q.head] = e
		return
	}
	q.list = append([]*queueEntry{e}, q.list...)
}

func (q *deque) popFront() *queueEntry {
	e := q.list[q.head]
	q.list[q.head] = nil
	q.head++
	if q.head == len(q.list) {
		q.list, q.head = q.list[:0], 0
	}
	return e
}

func (q *deque) drain() []*queueEntry {
	left := q.list[q.head:]
	*q = deque{}
	return left
}
