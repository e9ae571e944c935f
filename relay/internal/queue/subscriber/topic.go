package subscriber

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// topicQueue contains the entries of a topic in memory, and its subscriptions.
type topicQueue struct {
	s       *Subscriber
	name    string
	streams []*streamState

	mu               sync.Mutex
	active           *subscription
	maxInFlight      int // of the active subscription
	maxUnflushedAcks int // of the active subscription
	waitingSubs      []*subscription
	ready            deque // entries that a worker may take
	// waitingByKey contains the entries that wait for an earlier entry with the same key. If a key is present, an entry
	// with that key is in flight or ready.
	waitingByKey    map[string][]*queueEntry
	waitingCount    int  // entries in waitingByKey
	waitingBytes    int  // of the entries in ready and waitingByKey
	activeWorkers   int  // of the active subscription
	unflushedAcks   int  // acked entries whose ack is not stored
	skippedForSpace bool // the reader skipped this topic because it had no space
}

func newTopicQueue(s *Subscriber, name string) *topicQueue {
	return &topicQueue{s: s, name: name, maxInFlight: 1, waitingByKey: make(map[string][]*queueEntry)}
}

// subscription is the result of one Subscribe.
type subscription struct {
	t                *topicQueue
	maxInFlight      int
	maxUnflushedAcks int
	out              chan *message.Message
	ctx              context.Context // ends when messages in flight are released
	cancel           context.CancelFunc
	base             context.Context // parent of the messages' contexts; it never ends, for speed
	stopping         chan struct{}   // closed when no more messages are delivered
	done             chan struct{}   // closed when no worker and no message is left
	ended            bool            // stopping is closed; guarded by t.mu
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
	// The end of ctx starts HandlerGrace. The contexts of messages end after it.
	sub.base = context.WithoutCancel(ctx)
	sub.ctx, sub.cancel = context.WithCancel(sub.base)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.active != nil {
		t.waitingSubs = append(t.waitingSubs, sub)
		return sub
	}
	t.activateLocked(sub)
	return sub
}

func (t *topicQueue) activateLocked(sub *subscription) {
	t.active, t.maxInFlight, t.maxUnflushedAcks = sub, sub.maxInFlight, sub.maxUnflushedAcks
}

func (t *topicQueue) allSubscriptions() []*subscription {
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

// isDone reports whether no subscription will take new entries.
func (t *topicQueue) isDone() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.isDoneLocked()
}

func (t *topicQueue) isDoneLocked() bool {
	return t.active == nil || t.active.ended && len(t.waitingSubs) == 0
}

// hasSpace reports whether the reader may read more entries. If not, the topic wakes the reader when it has space
// again.
func (t *topicQueue) hasSpace() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	ok := t.hasSpaceLocked()
	if !ok {
		t.skippedForSpace = true
	}
	return ok
}

func (t *topicQueue) hasSpaceLocked() bool {
	return t.ready.len()+t.waitingCount < max(t.maxInFlight, topicBufferSize) && t.waitingBytes < topicBufferBytes &&
		(t.waitingBytes == 0 || !t.s.isOverBudget())
}

// addBytesLocked counts bytes of waiting entries.
func (t *topicQueue) addBytesLocked(n int) {
	t.waitingBytes += n
	t.s.waitingBytes.Add(int64(n))
}

// add queues new entries of one stream and starts workers for them. releases is the result of countReleases before
// the read.
func (t *topicQueue) add(entries []*queueEntry, releases int) {
	if len(entries) == 0 {
		return
	}
	if t.s.cfg.Key != nil { // before the lock, which all workers need
		for _, e := range entries {
			e.key = t.s.cfg.Key(t.name, e.buildMessage())
		}
	}
	t.mu.Lock()
	// If earlier entries are released, release these too, so all are read again in order.
	if t.isDoneLocked() || entries[0].st.hasReleasedSince(releases) {
		markReleasing(entries)
		t.mu.Unlock()
		t.s.acker.releaseEntries(entries)
		return
	}
	for _, e := range entries {
		t.enqueueLocked(e)
	}
	t.startWorkersLocked()
	t.mu.Unlock()
}

func (t *topicQueue) enqueueLocked(e *queueEntry) {
	t.addBytesLocked(len(e.body))
	if e.key != "" {
		if waiting, busy := t.waitingByKey[e.key]; busy {
			t.waitingByKey[e.key] = append(waiting, e)
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

// nextEntry returns the next entry for a worker that has acked done, which is nil at first. After nil, the worker ends.
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
		t.s.acker.flushSoon() // no more acks follow soon, or too many are not stored
		return nil
	}
	e := t.ready.popFront()
	t.addBytesLocked(-len(e.body))
	t.unlockAndRefill()
	return e
}

// acksFlushed records that n acks are stored, and restarts workers that ended because too many were not.
func (t *topicQueue) acksFlushed(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unflushedAcks -= n
	t.startWorkersLocked()
}

func (t *topicQueue) unblockLocked(key string) {
	waiting := t.waitingByKey[key]
	if len(waiting) == 0 {
		delete(t.waitingByKey, key)
		return
	}
	t.ready.pushBack(waiting[0])
	t.waitingByKey[key] = waiting[1:]
	t.waitingCount--
}

// putBack returns an entry that was not acked to the front of the queue, for the next subscription.
func (t *topicQueue) putBack(e *queueEntry) {
	t.mu.Lock()
	t.ready.pushFront(e)
	t.addBytesLocked(len(e.body))
	t.mu.Unlock()
}

func (t *topicQueue) wakeReaders() {
	for _, st := range t.streams {
		if r := st.reader.Load(); r != nil {
			r.wakeUp()
		}
	}
}

// workerDoneLocked ends a worker and unlocks t.mu.
func (t *topicQueue) workerDoneLocked(sub *subscription) {
	t.activeWorkers--
	if sub.ended && t.activeWorkers == 0 {
		t.finishLocked(sub)
		return
	}
	t.unlockAndRefill()
}

// unlockAndRefill unlocks t.mu. It wakes the readers if they skipped the topic and it has space again.
func (t *topicQueue) unlockAndRefill() {
	wake := t.skippedForSpace && t.hasSpaceLocked()
	if wake {
		t.skippedForSpace = false
	}
	t.mu.Unlock()
	if wake {
		t.wakeReaders()
	}
}

// finishLocked activates the next subscription, or releases all entries, and unlocks t.mu.
func (t *topicQueue) finishLocked(sub *subscription) {
	t.active = nil
	var left []*queueEntry
	if len(t.waitingSubs) > 0 {
		next := t.waitingSubs[0]
		t.waitingSubs = t.waitingSubs[1:]
		t.activateLocked(next)
		t.startWorkersLocked()
	} else {
		left = t.ready.takeAll()
		for _, waiting := range t.waitingByKey {
			left = append(left, waiting...)
		}
		clear(t.waitingByKey)
		t.waitingCount = 0
		t.addBytesLocked(-t.waitingBytes)
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

// stop ends the delivery of messages. It does not wait.
func (sub *subscription) stop() {
	t := sub.t
	t.mu.Lock()
	if sub.ended {
		t.mu.Unlock()
		return
	}
	sub.ended = true
	close(sub.stopping)
	if i := slices.Index(t.waitingSubs, sub); i >= 0 {
		t.waitingSubs = append(t.waitingSubs[:i:i], t.waitingSubs[i+1:]...)
		t.mu.Unlock()
		sub.cancel()
		close(sub.out)
		close(sub.done)
		return
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

// runWorker delivers one message at a time until the queue is empty or the subscription ends.
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

// deliverEntry delivers the entry until it is acked. It returns false if the subscription ended first.
func (sub *subscription) deliverEntry(e *queueEntry) bool {
	for {
		msg := e.buildMessage()
		e.msg = nil // the handler may modify it, so a second delivery needs a new one
		ctx, cancel := context.WithCancel(sub.base)
		msg.SetContext(ctx)
		select {
		case sub.out <- msg:
		case <-sub.stopping:
			cancel()
			return false
		}
		if sub.t.tryAck(e, msg) {
			cancel()
			return true
		}
		select {
		case <-msg.Acked():
			cancel()
			sub.t.ackEntry(e, msg)
			return true
		case <-msg.Nacked():
			cancel()
		case <-sub.ctx.Done():
			cancel()
			return sub.t.tryAck(e, msg)
		}
		if !sub.sleepFor(sub.t.s.cfg.NackDelay) {
			return false
		}
	}
}

// tryAck acks the entry if its message is acked already: by a fast handler, or at the same time as the end of the
// subscription.
func (t *topicQueue) tryAck(e *queueEntry, msg *message.Message) bool {
	select {
	case <-msg.Acked():
		t.ackEntry(e, msg)
		return true
	default:
		return false
	}
}

// ackEntry removes an entry from its stream soon, after the handler has acked its message.
func (t *topicQueue) ackEntry(e *queueEntry, msg *message.Message) {
	e.stored = msg.Metadata[metadataStored] != ""
	t.s.acker.ackEntry(e)
}

func (sub *subscription) sleepFor(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-sub.stopping:
		return false
	}
}
