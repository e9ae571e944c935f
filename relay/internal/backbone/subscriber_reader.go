package backbone

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// slotReader reads all streams of one slot with one command at a time.
type slotReader struct {
	s *Subscriber

	mu      sync.Mutex
	sources []*streamState // replaced, never changed

	replan   chan struct{} // something changed: plan again
	unblock  chan struct{} // and a read is blocked
	blocking atomic.Bool
	session  atomic.Pointer[readSession]

	// These belong to run.
	busySources []*streamState // gave many entries in the last read
	streamCount int            // streams to read
	lastFull    time.Time      // last read of all streams
	fullSources []*streamState // gave as many entries as they could in the last read
	prefetched  []streamRead   // asked for already, not yet answered
}

// readSession is the connection of the blocking reads. Its client id lets another connection end a read at once.
type readSession struct {
	wire *respConn
	node *redis.Client // commands on the same server; nil where a blocked read cannot be ended
}

// streamRead is one stream of a read, with the position it begins after.
type streamRead struct {
	src  *streamState
	from string
}

func newReader(s *Subscriber) *slotReader {
	return &slotReader{s: s, replan: make(chan struct{}, 1), unblock: make(chan struct{}, 1)}
}

func (r *slotReader) add(src *streamState) {
	r.mu.Lock()
	for _, other := range r.sources {
		if other == src {
			r.mu.Unlock()
			return
		}
	}
	r.sources = append(r.sources[:len(r.sources):len(r.sources)], src)
	r.mu.Unlock()
	r.wake()
}

func (r *slotReader) remove(src *streamState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, other := range r.sources {
		if other == src {
			r.sources = append(r.sources[:i:i], r.sources[i+1:]...)
			return
		}
	}
}

// wake lets the reader plan its next read now, ending one that is blocked.
func (r *slotReader) wake() {
	trySignal(r.replan)
	if r.blocking.Load() {
		trySignal(r.unblock)
	}
}

func trySignal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// unblockLoop ends blocked reads by CLIENT UNBLOCK. The read may not have reached Redis yet, so it repeats until it took.
func (r *slotReader) unblockLoop() {
	defer r.s.wg.Done()
	for {
		select {
		case <-r.unblock:
		case <-r.s.ctx.Done():
			r.unblockRead(context.WithoutCancel(r.s.ctx))
			return
		}
		r.unblockRead(r.s.ctx)
	}
}

func (r *slotReader) unblockRead(ctx context.Context) {
	for r.blocking.Load() {
		session := r.session.Load()
		if session == nil || session.node == nil {
			return
		}
		n, err := session.node.ClientUnblock(ctx, session.wire.clientID).Result()
		if n == 1 || err != nil {
			return
		}
		timer := time.NewTimer(time.Millisecond)
		<-timer.C
	}
}

func (r *slotReader) run() {
	defer r.s.wg.Done()
	defer r.disconnect()
	var wait backoff
	// What was asked ahead is still taken, to be given back with the rest.
	for r.s.ctx.Err() == nil || len(r.prefetched) > 0 {
		plan, err := r.prefetched, error(nil)
		if len(plan) == 0 {
			plan, err = r.planRead()
		}
		if err == nil && len(plan) == 0 {
			r.sleep(r.idleWait())
			continue
		}
		if err == nil {
			err = r.read(plan)
		}
		if err == nil {
			wait.reset()
			continue
		}
		if r.s.ctx.Err() != nil {
			return
		}
		r.sleep(r.recoverFrom(plan, err, &wait))
	}
}

// sleep waits for d, or until something changes.
func (r *slotReader) sleep(d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-r.replan:
	case <-timer.C:
	case <-r.s.ctx.Done():
	}
}

// idleWait is how long to wait when no stream has room: streams with a backlog will have some soon.
func (r *slotReader) idleWait() time.Duration {
	if len(r.busySources) > 0 {
		return backlogPause
	}
	return time.Second
}

// planRead lists the streams with room and makes sure that each has its group.
func (r *slotReader) planRead() ([]streamRead, error) {
	if r.s.acker.pendingCount() > maxUnflushed {
		r.sleep(backlogPause)
		if r.s.acker.pendingCount() > maxUnflushed {
			return nil, nil
		}
	}
	r.mu.Lock()
	sources := r.sources
	r.mu.Unlock()
	r.streamCount = len(sources)
	now := time.Now()
	// While a few streams have a backlog, most reads leave the many idle ones out.
	if len(r.busySources) > 0 && now.Sub(r.lastFull) < backlogPause {
		sources = r.busySources
	} else {
		r.lastFull = now
	}
	plan := make([]streamRead, 0, len(sources))
	var lacking []*streamState
	for _, src := range sources {
		if src.reader.Load() != r || now.Before(src.retryAt) || src.isReleasing() || !src.topic.hasRoom() {
			continue
		}
		if !src.groupExists {
			lacking = append(lacking, src)
		}
		plan = append(plan, streamRead{src, src.position()})
	}
	if len(lacking) > 0 {
		if err := r.createGroups(lacking); err != nil {
			return plan, err
		}
	}
	return plan, nil
}

// read runs one XREADGROUP, where that was not asked ahead, and hands what comes to the topics.
func (r *slotReader) read(plan []streamRead) error {
	session, err := r.connect(plan[0].src.stream)
	if err != nil {
		return err
	}
	r.blocking.Store(true)
	defer r.blocking.Store(false)
	if len(r.prefetched) == 0 {
		if err := r.sendRead(session, plan); err != nil {
			return err
		}
	}
	if err := session.wire.awaitReply(); err != nil {
		return err
	}
	if err := r.prefetch(session); err != nil {
		return err
	}
	r.busySources, r.fullSources = r.busySources[:0], r.fullSources[:0]
	return session.wire.readStreams(plan, func(i int, entries []rawEntry) {
		p := plan[i]
		returns := p.src.releases()
		own, ok := p.src.moveTo(p.from, entries)
		if !ok {
			if p.from == newEntries && p.src.topic.isDone() { // else they come again
				fresh, _, _ := p.src.accept(entries, false)
				markReleasing(fresh)
				r.s.acker.releaseEntries(fresh)
			}
			return
		}
		if own {
			r.s.reclaimer.wake()
		}
		r.s.enqueueEntries(p.src, entries, false, returns)
		if len(entries) >= 8 && r.streamCount > 1 {
			r.busySources = append(r.busySources, p.src)
		}
		if len(entries) == countFor(plan) && p.from == newEntries {
			r.fullSources = append(r.fullSources, p.src)
		}
	})
}

func countFor(plan []streamRead) int { return max(8, min(readCount, readBudget/len(plan))) }

// sendRead sends the read. Own pending entries never block it.
func (r *slotReader) sendRead(session *readSession, plan []streamRead) error {
	block := readBlock
	if session.node == nil {
		block = fallbackBlock
	}
	if len(r.busySources) > 0 {
		block = -1
	}
	select {
	case <-r.replan: // whatever came before blocking was set shows here, what comes after it ends the read
		block = -1
	default:
	}
	return session.wire.sendReadGroup(r.s.cfg.Group, r.s.cfg.Consumer, countFor(plan), block, plan)
}

// prefetch sends the next read while the answer to this one is under way, so that Redis works on it while we take that
// apart. It is for streams with a backlog, and leaves a read out where others are due.
func (r *slotReader) prefetch(session *readSession) error {
	r.prefetched = nil
	if len(r.fullSources) == 0 || r.s.ctx.Err() != nil || r.s.acker.pendingCount() > maxUnflushed {
		return nil
	}
	r.mu.Lock()
	total := len(r.sources)
	r.mu.Unlock()
	if total > len(r.fullSources) && time.Since(r.lastFull) >= backlogPause {
		return nil
	}
	plan := make([]streamRead, 0, len(r.fullSources))
	for _, src := range r.fullSources {
		if src.reader.Load() == r && !src.isReleasing() && src.position() == newEntries && src.topic.hasRoom() {
			plan = append(plan, streamRead{src, newEntries})
		}
	}
	if len(plan) == 0 {
		return nil
	}
	r.prefetched = plan
	return session.wire.sendReadGroup(r.s.cfg.Group, r.s.cfg.Consumer, countFor(plan), -1, plan)
}

func (r *slotReader) connect(stream string) (*readSession, error) {
	if session := r.session.Load(); session != nil {
		return session, nil
	}
	node, err := nodeOf(r.s.ctx, r.s.cfg.Readers, stream)
	if err != nil {
		return nil, err
	}
	commands, err := nodeOf(r.s.ctx, r.s.cfg.Commands, stream)
	if err != nil {
		return nil, err
	}
	w, err := dialRESP(r.s.ctx, node.Options())
	if err != nil {
		reloadSlots(r.s.ctx, r.s.cfg.Readers)
		return nil, err
	}
	session := &readSession{wire: w, node: commands}
	// A server without CLIENT ID or UNBLOCK is read with short blocks instead.
	if err := commands.ClientUnblock(r.s.ctx, 0).Err(); w.clientID == 0 || err != nil && !isTransient(err) {
		session.node = nil
	}
	r.session.Store(session)
	return session, nil
}

func (r *slotReader) disconnect() {
	if session := r.session.Swap(nil); session != nil {
		_ = session.wire.conn.Close()
		reloadSlots(r.s.ctx, r.s.cfg.Readers) // a slot may have moved
	}
}

// enqueueEntries queues entries that were read or claimed, and settles those that cannot be worked on. returns is what the source
// said before.
func (s *Subscriber) enqueueEntries(src *streamState, msgs []rawEntry, claimed bool, returns int) int {
	if len(msgs) == 0 {
		return 0
	}
	fresh, dead, bad := src.accept(msgs, claimed)
	src.topic.add(fresh, returns)
	if len(dead) > 0 {
		s.acker.ackUnknown(src, dead)
	}
	for _, m := range bad {
		if s.quarantine(src, m) {
			s.acker.ackUnknown(src, []string{m.id})
		}
	}
	return len(fresh)
}

// quarantine reports whether the entry may be removed from its stream.
func (s *Subscriber) quarantine(src *streamState, m rawEntry) bool {
	if s.cfg.OnMalformed == nil {
		s.cfg.Log.Warn("dropped a queue entry without id or data", "stream", src.stream, "entry", m.id)
		return true
	}
	ctx, cancel := context.WithTimeout(s.ctx, flushTimeout)
	defer cancel()
	if err := s.cfg.OnMalformed(ctx, src.stream, m.id, m.toMap()); err != nil {
		s.cfg.Log.Warn("a queue entry without id or data stays pending", "stream", src.stream, "entry", m.id, "error", err)
		return false
	}
	return true
}
