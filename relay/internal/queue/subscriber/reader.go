package subscriber

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/resp"
)

// slotReader reads all streams of one slot, with one command at a time.
type slotReader struct {
	s *Subscriber

	mu      sync.Mutex
	streams []*streamState // replaced, never modified

	replan   chan struct{} // plan again, because something has changed
	unblock  chan struct{} // interrupt the blocked read
	blocking atomic.Bool
	session  atomic.Pointer[readSession]

	// The following fields belong to run.

	busyStreams []*streamState // returned many entries in the last read
	fullStreams []*streamState // returned as many entries as requested in the last read
	streamCount int
	lastFull    time.Time // last read of all streams
	prefetched  readPlan  // requested, but not yet received
}

// readSession is the connection of the blocking reads. Another connection can interrupt a read by its client ID.
type readSession struct {
	conn *resp.Conn
	node *redis.Client // runs commands on the same server; nil if a blocked read cannot be interrupted
}

// readPlan is a read of several streams.
type readPlan struct {
	streams []streamRead
	count   int // maximum number of entries of each stream
}

// streamRead is one stream of a read and the position after which it begins.
type streamRead struct {
	st   *streamState
	from string
}

func newSlotReader(s *Subscriber) *slotReader {
	return &slotReader{s: s, replan: make(chan struct{}, 1), unblock: make(chan struct{}, 1)}
}

func (r *slotReader) add(st *streamState) {
	r.mu.Lock()
	if slices.Contains(r.streams, st) {
		r.mu.Unlock()
		return
	}
	r.streams = append(r.streams[:len(r.streams):len(r.streams)], st)
	r.mu.Unlock()
	r.wakeUp()
}

func (r *slotReader) remove(st *streamState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.streams, st); i >= 0 {
		r.streams = append(r.streams[:i:i], r.streams[i+1:]...)
	}
}

// wakeUp makes the reader plan its next read now. It interrupts a blocked read.
func (r *slotReader) wakeUp() {
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

// unblockLoop interrupts blocked reads with CLIENT UNBLOCK.
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

// unblockRead repeats CLIENT UNBLOCK until it has an effect, because the read may not have reached Redis yet.
func (r *slotReader) unblockRead(ctx context.Context) {
	for r.blocking.Load() {
		session := r.session.Load()
		if session == nil || session.node == nil {
			return
		}
		n, err := session.node.ClientUnblock(ctx, session.conn.ClientID()).Result()
		if n == 1 || err != nil {
			return
		}
		timer := time.NewTimer(time.Millisecond)
		<-timer.C
	}
}

func (r *slotReader) run() {
	defer r.s.wg.Done()
	defer r.closeSession()
	retry := newBackoff()
	// A prefetched reply is still read after ctx ended, so its entries are released.
	for r.s.ctx.Err() == nil || len(r.prefetched.streams) > 0 {
		plan, err := r.prefetched, error(nil)
		if len(plan.streams) == 0 {
			plan, err = r.planRead()
		}
		if err == nil && len(plan.streams) == 0 {
			r.sleepFor(r.idleWait())
			continue
		}
		if err == nil {
			err = r.read(plan)
		}
		if err == nil {
			retry.Reset()
			continue
		}
		if r.s.ctx.Err() != nil {
			return
		}
		r.sleepFor(r.recoverFrom(plan.streams, err, &retry))
	}
}

// sleepFor waits for d, or until something changes.
func (r *slotReader) sleepFor(d time.Duration) {
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

// idleWait returns the time to wait if no stream has space. Streams with a backlog will have space soon.
func (r *slotReader) idleWait() time.Duration {
	if len(r.busyStreams) > 0 {
		return backlogPause
	}
	return time.Second
}

// planRead returns the streams with space, and creates their missing groups.
func (r *slotReader) planRead() (readPlan, error) {
	if r.s.acker.pendingCount() > maxUnflushed {
		r.sleepFor(backlogPause)
		if r.s.acker.pendingCount() > maxUnflushed {
			return readPlan{}, nil
		}
	}
	r.mu.Lock()
	streams := r.streams
	r.mu.Unlock()
	r.streamCount = len(streams)
	now := time.Now()
	// While a few streams have a backlog, most reads skip the many idle ones.
	if len(r.busyStreams) > 0 && now.Sub(r.lastFull) < backlogPause {
		streams = r.busyStreams
	} else {
		r.lastFull = now
	}
	list := make([]streamRead, 0, len(streams))
	var missing []*streamState
	for _, st := range streams {
		if st.reader.Load() != r || now.Before(st.retryAt) || st.isReleasing() || !st.topic.hasSpace() {
			continue
		}
		if !st.groupExists || st.needsGroup {
			missing = append(missing, st)
		}
		list = append(list, streamRead{st, st.readPosition()})
	}
	if len(missing) > 0 {
		if err := r.createGroups(missing); err != nil {
			return readPlan{list, 0}, err
		}
		list = slices.DeleteFunc(list, func(p streamRead) bool { return now.Before(p.st.retryAt) })
	}
	return readPlan{list, r.countFor(list)}, nil
}

// countFor returns the maximum number of entries of each stream in a read. It depends on the largest entries.
func (r *slotReader) countFor(list []streamRead) int {
	if len(list) == 0 {
		return 0
	}
	count := max(minReadCount, min(readCount, readBudget/len(list)))
	for _, p := range list {
		size := p.st.entryBytes
		if size == 0 {
			size = unknownEntryBytes
		}
		count = min(count, max(r.s.maxReadBytes(p.st)/size, 1))
	}
	return count
}

// read runs one XREADGROUP, or receives the one that was prefetched, and passes the entries to the topics.
func (r *slotReader) read(plan readPlan) error {
	session, err := r.connect(plan.streams[0].st.name)
	if err != nil {
		return err
	}
	r.blocking.Store(true)
	defer r.blocking.Store(false)
	if len(r.prefetched.streams) == 0 {
		if err := r.sendRead(session, plan); err != nil {
			return err
		}
	}
	if err := session.conn.AwaitReply(); err != nil {
		return err
	}
	if err := r.prefetchNext(session); err != nil {
		return err
	}
	r.busyStreams, r.fullStreams = r.busyStreams[:0], r.fullStreams[:0]
	name := func(i int) string { return plan.streams[i].st.name }
	receive := func(i int, entries []resp.Entry, truncated bool) {
		r.receive(plan.streams[i], entries, truncated, plan.count)
	}
	maxBytes := func(i int) int { return r.s.maxReadBytes(plan.streams[i].st) }
	return session.conn.ReadStreams(len(plan.streams), name, maxBytes, receive)
}

// receive passes the entries of one stream to its topic. If they are truncated, Redis has sent more, which are pending now.
// requested is the maximum number of entries in the reply.
func (r *slotReader) receive(p streamRead, entries []resp.Entry, truncated bool, requested int) {
	releases := p.st.countReleases()
	p.st.recordSize(entries)
	pendingDone, ok := p.st.advancePosition(p.from, entries, truncated)
	if !ok {
		// Pending entries are read again anyway. New ones are released if there is no subscription left.
		if p.from == newEntries && p.st.topic.isDone() {
			fresh, _, _ := p.st.acceptEntries(entries)
			markReleasing(fresh)
			r.s.acker.releaseEntries(fresh)
		}
		return
	}
	if pendingDone {
		r.s.reclaimer.wakeUp()
	}
	r.s.enqueueEntries(p.st, entries, releases)
	if len(entries) >= minReadCount && r.streamCount > 1 {
		r.busyStreams = append(r.busyStreams, p.st)
	}
	if len(entries) == requested && p.from == newEntries && !truncated {
		r.fullStreams = append(r.fullStreams, p.st)
	}
}

// sendRead sends the read. It does not block if the stream has pending entries.
func (r *slotReader) sendRead(session *readSession, plan readPlan) error {
	block := readBlock
	if session.node == nil {
		block = fallbackBlock
	}
	if len(r.busyStreams) > 0 {
		block = -1
	}
	select {
	case <-r.replan: // a change before blocking was set; a later one interrupts the read
		block = -1
	default:
	}
	return r.sendGroupRead(session, plan, block)
}

func (r *slotReader) sendGroupRead(session *readSession, plan readPlan, block time.Duration) error {
	read := resp.GroupRead{Group: r.s.cfg.Group, Consumer: r.s.cfg.Consumer, Count: plan.count, Block: block}
	return session.conn.SendGroupRead(read, len(plan.streams), func(i int) (name, after string) {
		return plan.streams[i].st.name, plan.streams[i].from
	})
}

// prefetchNext sends the next read of streams with a backlog while the current reply arrives, so Redis works on it
// while the reply is decoded. It does nothing if other streams are due.
func (r *slotReader) prefetchNext(session *readSession) error {
	r.prefetched = readPlan{}
	if len(r.fullStreams) == 0 || r.s.ctx.Err() != nil || r.s.acker.pendingCount() > maxUnflushed {
		return nil
	}
	r.mu.Lock()
	total := len(r.streams)
	r.mu.Unlock()
	if total > len(r.fullStreams) && time.Since(r.lastFull) >= backlogPause {
		return nil
	}
	list := make([]streamRead, 0, len(r.fullStreams))
	for _, st := range r.fullStreams {
		if st.reader.Load() == r && !st.isReleasing() && st.readPosition() == newEntries && st.topic.hasSpace() {
			list = append(list, streamRead{st, newEntries})
		}
	}
	if len(list) == 0 {
		return nil
	}
	r.prefetched = readPlan{list, r.countFor(list)}
	return r.sendGroupRead(session, r.prefetched, -1)
}

func (r *slotReader) connect(stream string) (*readSession, error) {
	if session := r.session.Load(); session != nil {
		return session, nil
	}
	node, err := redisconn.NodeFor(r.s.ctx, r.s.cfg.Readers, stream)
	if err != nil {
		return nil, err
	}
	commands, err := redisconn.NodeFor(r.s.ctx, r.s.cfg.Commands, stream)
	if err != nil {
		return nil, err
	}
	conn, err := resp.Dial(r.s.ctx, node.Options())
	if err != nil {
		redisconn.ReloadSlots(r.s.ctx, r.s.cfg.Readers)
		return nil, err
	}
	session := &readSession{conn: conn, node: commands}
	// If the server lacks CLIENT ID or CLIENT UNBLOCK, reads block only briefly.
	err = commands.ClientUnblock(r.s.ctx, 0).Err()
	if conn.ClientID() == 0 || err != nil && !redisconn.IsTransient(err) {
		session.node = nil
	}
	r.session.Store(session)
	return session, nil
}

func (r *slotReader) closeSession() {
	if session := r.session.Swap(nil); session != nil {
		_ = session.conn.Close()
		redisconn.ReloadSlots(r.s.ctx, r.s.cfg.Readers) // the slot may have moved
	}
}

// enqueueEntries passes entries that were read to their topic, and removes entries that cannot be delivered. releases is
// the result of st.countReleases before the read.
func (s *Subscriber) enqueueEntries(st *streamState, entries []resp.Entry, releases int) {
	if len(entries) == 0 {
		return
	}
	fresh, deleted, malformed := st.acceptEntries(entries)
	st.topic.add(fresh, releases)
	if len(deleted) > 0 {
		s.acker.ackUnknown(st, deleted)
	}
	for _, e := range malformed {
		if s.handleMalformed(st, e) {
			s.acker.ackUnknown(st, []string{e.ID})
		}
	}
}

// handleMalformed reports whether the entry may be removed from its stream.
func (s *Subscriber) handleMalformed(st *streamState, e resp.Entry) bool {
	if s.cfg.OnMalformed == nil {
		s.cfg.Log.Warn("dropped a queue entry without ID or data", "redis_key", st.name, "entry_id", e.ID)
		return true
	}
	ctx, cancel := context.WithTimeout(s.ctx, flushTimeout)
	defer cancel()
	if err := s.cfg.OnMalformed(ctx, st.name, e.ID, e.ToMap()); err != nil {
		s.cfg.Log.Warn("storing a queue entry without ID or data elsewhere failed",
			"redis_key", st.name, "entry_id", e.ID, "error", err)
		return false
	}
	return true
}
