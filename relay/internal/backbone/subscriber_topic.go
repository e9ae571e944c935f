package backbone

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// topicQueue is the queue of entries in memory of one topic, and who takes them.
type topicQueue struct {
	s       *Subscriber
	name    string
	sources []*streamState

	mu               sync.Mutex
	active           *subscription
	maxInFlight      int // of the active subscription
	maxUnflushedAcks int // acks that may be unstored before its lanes take no more
	waitingSubs      []*subscription
	ready            deque                    // entries a free lane may take
	waitingByKey     map[string][]*queueEntry // by key: entries that wait for one of the same key; a present key is in flight or ready
	waitingCount     int                      // entries in behind
	activeWorkers    int                      // lanes of the active subscription
	unflushedAcks    int                      // entries that lanes have acked, less those whose ack is stored
	skippedForSpace  bool                     // the reader left this topic out for want of room
}

func newTopicQueue(s *Subscriber, name string) *topicQueue {
	return &topicQueue{s: s, name: name, maxInFlight: 1, waitingByKey: make(map[string][]*queueEntry)}
}

// subscription is one call of Subscribe.
type subscription struct {
	t                *topicQueue
	maxInFlight      int
	maxUnflushedAcks int
	out              chan *message.Message
	ctx              context.Context // ends when messages in handlers' hands are given back
	cancel           context.CancelFunc
	base             context.Context // parent of the messages' contexts, without an end: to link each to ctx costs more
	stopping         chan struct{}   // closed when no more messages are to be handed out
	done             chan struct{}   // closed when nothing of it is left
	ended            bool            // ending is closed; guarded by t.mu
}

func (t *topicQueue) subscribe(ctx context.Context) *subscription {
	sub := &subscription{
		t:                t,
		maxInFlight:      max(1, t.s.cfg.MaxInFlight(t.name)),
		maxUnflushedAcks: max(1, t.s.cfg.MaxUnflushedAcks(t.name)),
		out:              make(chan *message.Message),
		stopping:         make(chan struct{}),
		done:             make(chan struct{}),
	}
	// The end of ctx starts the Grace; only after that do the messages' contexts end.
	sub.base = context.WithoutCancel(ctx)
	sub.ctx, sub.cancel = context.WithCancel(sub.base)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.active != nil {
		t.waitingSubs = append(t.waitingSubs, sub)
		return sub
	}
	t.active, t.maxInFlight, t.maxUnflushedAcks = sub, sub.maxInFlight, sub.maxUnflushedAcks
	return sub
}

func (t *topicQueue) subscriptions() []*subscription {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.active == nil {
		return nil
	}
	return append([]*subscription{t.active}, t.waitingSubs...)
}

func (t *topicQueue) isIdle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.active == nil
}

// isDone says whether nobody will take what is read now.
func (t *topicQueue) isDone() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.isDoneLocked()
}

func (t *topicQueue) isDoneLocked() bool {
	return t.active == nil || t.active.ended && len(t.waitingSubs) == 0
}

// hasRoom says whether the reader may fetch more, and remembers a no so that the next free lane wakes the reader.
func (t *topicQueue) hasRoom() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	ok := t.roomLocked()
	if !ok {
		t.skippedForSpace = true
	}
	return ok
}

func (t *topicQueue) roomLocked() bool {
	return t.ready.len()+t.waitingCount < max(t.maxInFlight, topicBufferSize)
}

// add queues entries that were just read, and starts lanes for them.
func (t *topicQueue) add(entries []*queueEntry, returns int) {
	if len(entries) == 0 {
		return
	}
	if t.s.cfg.Key != nil { // before the lock, which every lane wants
		for _, e := range entries {
			e.key = t.s.cfg.Key(t.name, e.buildMessage())
		}
	}
	t.mu.Lock()
	// What comes behind entries that are being given back is given back as well, and read after them.
	if t.isDoneLocked() || entries[0].src.releasedSince(returns) {
		markReleasing(entries)
		t.mu.Unlock()
		t.s.acker.releaseEntries(entries)
		return
	}
	for _, e := range entries {
		t.queueLocked(e)
	}
	t.startWorkersLocked()
	t.mu.Unlock()
}

func (t *topicQueue) queueLocked(e *queueEntry) {
	if e.key != "" {
		if line, busy := t.waitingByKey[e.key]; busy {
			t.waitingByKey[e.key] = append(line, e)
			t.waitingCount++
			return
		}
		t.waitingByKey[e.key] = nil
	}
	t.ready.pushBack(e)
}

func (t *topicQueue) startWorkersLocked() {
	if t.active == nil || t.active.ended || t.unflushedAcks > t.maxUnflushedAcks {
		return
	}
	for n := min(t.maxInFlight-t.activeWorkers, t.ready.len()); n > 0; n-- {
		t.activeWorkers++
		go t.active.runWorker()
	}
}

// nextEntry returns the entry that a lane works on next, after the lane has acked done (nil at first); nil ends the lane.
func (t *topicQueue) nextEntry(sub *subscription, done *queueEntry) *queueEntry {
	t.mu.Lock()
	if done != nil {
		t.unflushedAcks++
		if done.key != "" {
			t.unblockLocked(done.key)
		}
	}
	if sub.ended || t.ready.len() == 0 || t.unflushedAcks > t.maxUnflushedAcks {
		t.workerDoneLocked(sub)
		t.s.acker.flushSoon() // there is nothing to gather for, or too much was
		return nil
	}
	e := t.ready.popFront()
	t.unlockAndRefill()
	return e
}

// acksFlushed tells that the acks of n entries are in Redis, and lets lanes go on that ended because too many were not.
func (t *topicQueue) acksFlushed(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unflushedAcks -= n
	t.startWorkersLocked()
}

func (t *topicQueue) unblockLocked(key string) {
	line := t.waitingByKey[key]
	if len(line) == 0 {
		delete(t.waitingByKey, key)
		return
	}
	t.ready.pushBack(line[0])
	t.waitingByKey[key] = line[1:]
	t.waitingCount--
}

// putBack puts an entry that its lane could not finish at the head of the queue, for the next subscription.
func (t *topicQueue) putBack(e *queueEntry) {
	t.mu.Lock()
	t.ready.pushFront(e)
	t.mu.Unlock()
}

func (t *topicQueue) wakeReaders() {
	for _, src := range t.sources {
		if r := src.reader.Load(); r != nil {
			r.wake()
		}
	}
}

// workerDoneLocked ends a lane and unlocks.
func (t *topicQueue) workerDoneLocked(sub *subscription) {
	t.activeWorkers--
	if sub.ended && t.activeWorkers == 0 {
		t.finishLocked(sub)
		return
	}
	t.unlockAndRefill()
}

// unlockAndRefill unlocks, and wakes the readers where they left the topic out and it has room again.
func (t *topicQueue) unlockAndRefill() {
	wake := t.skippedForSpace && t.roomLocked()
	if wake {
		t.skippedForSpace = false
	}
	t.mu.Unlock()
	if wake {
		t.wakeReaders()
	}
}

// finishLocked hands the topic to the next subscription, or gives all entries back, and unlocks.
func (t *topicQueue) finishLocked(sub *subscription) {
	t.active = nil
	var left []*queueEntry
	if len(t.waitingSubs) > 0 {
		t.active, t.waitingSubs = t.waitingSubs[0], t.waitingSubs[1:]
		t.maxInFlight, t.maxUnflushedAcks = t.active.maxInFlight, t.active.maxUnflushedAcks
		t.startWorkersLocked()
	} else {
		left = t.ready.drain()
		for _, line := range t.waitingByKey {
			left = append(left, line...)
		}
		clear(t.waitingByKey)
		t.waitingCount = 0
		markReleasing(left)
	}
	t.mu.Unlock()

	sub.cancel()
	if len(left) > 0 {
		t.s.acker.releaseEntries(left)
	}
	t.s.stopReading(t)
	close(sub.out)
	close(sub.done)
}

// stop lets the subscription hand out no more messages. It does not wait.
func (sub *subscription) stop() {
	t := sub.t
	t.mu.Lock()
	if sub.ended {
		t.mu.Unlock()
		return
	}
	sub.ended = true
	close(sub.stopping)
	for i, other := range t.waitingSubs {
		if other == sub {
			t.waitingSubs = append(t.waitingSubs[:i:i], t.waitingSubs[i+1:]...)
			t.mu.Unlock()
			sub.cancel()
			close(sub.out)
			close(sub.done)
			return
		}
	}
	if t.activeWorkers == 0 {
		t.finishLocked(sub)
		return
	}
	t.mu.Unlock()
	if grace := t.s.cfg.HandlerGrace; grace > 0 {
		timer := time.AfterFunc(grace, sub.cancel)
		context.AfterFunc(sub.ctx, func() { timer.Stop() })
		return
	}
	sub.cancel()
}

// runWorker hands out one message after the other until the queue is empty or the subscription ends.
func (sub *subscription) runWorker() {
	e := sub.t.nextEntry(sub, nil)
	for e != nil {
		if sub.deliverEntry(e) {
			e = sub.t.nextEntry(sub, e)
			continue
		}
		sub.t.putBack(e)
		e = sub.t.nextEntry(sub, nil)
	}
}

// deliverEntry gives the entry to the handler until it is acked. It returns false when the subscription ended before.
func (sub *subscription) deliverEntry(e *queueEntry) bool {
	for {
		msg := e.buildMessage()
		e.msg = nil // a handler may change it: the next time gets a new one
		ctx, cancel := context.WithCancel(sub.base)
		msg.SetContext(ctx)
		select {
		case sub.out <- msg:
		case <-sub.stopping:
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
			sub.t.s.acker.ack(e)
			return true
		case <-msg.Nacked():
			cancel()
		case <-sub.ctx.Done():
			cancel()
			return sub.t.ackedAlready(e, msg)
		}
		if !sub.sleep(sub.t.s.cfg.NackDelay) {
			return false
		}
	}
}

// ackedAlready honours an ack without waiting for one: a quick handler's, or one that came together with the end.
func (t *topicQueue) ackedAlready(e *queueEntry, msg *message.Message) bool {
	select {
	case <-msg.Acked():
		t.s.acker.ack(e)
		return true
	default:
		return false
	}
}

func (sub *subscription) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-sub.stopping:
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
