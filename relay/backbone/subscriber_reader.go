package backbone

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// reader reads all streams of one slot with one command at a time.
type reader struct {
	s *Subscriber

	mu      sync.Mutex
	sources []*source // replaced, never changed

	signal   chan struct{} // something changed: plan again
	unblock  chan struct{} // and a read is blocked
	blocking atomic.Bool
	session  atomic.Pointer[readSession]

	// These belong to run.
	hot      []*source // gave many entries in the last read
	total    int       // streams to read
	lastFull time.Time // last read of all streams
	full     []*source // gave as many entries as they could in the last read
	ahead    []reading // asked for already, not yet answered
}

// readSession is the connection of the blocking reads. Its client id lets another connection end a read at once.
type readSession struct {
	wire *wire
	node *redis.Client // commands on the same server; nil where a blocked read cannot be ended
}

// reading is one stream of a read, with the position it begins after.
type reading struct {
	src  *source
	from string
}

func newReader(s *Subscriber) *reader {
	return &reader{s: s, signal: make(chan struct{}, 1), unblock: make(chan struct{}, 1)}
}

func (r *reader) add(src *source) {
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

func (r *reader) remove(src *source) {
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
func (r *reader) wake() {
	poke(r.signal)
	if r.blocking.Load() {
		poke(r.unblock)
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// runWaker ends blocked reads by CLIENT UNBLOCK. The read may not have reached Redis yet, so it repeats until it took.
func (r *reader) runWaker() {
	defer r.s.wg.Done()
	for {
		select {
		case <-r.unblock:
		case <-r.s.ctx.Done():
			r.endRead(context.WithoutCancel(r.s.ctx))
			return
		}
		r.endRead(r.s.ctx)
	}
}

func (r *reader) endRead(ctx context.Context) {
	for r.blocking.Load() {
		session := r.session.Load()
		if session == nil || session.node == nil {
			return
		}
		n, err := session.node.ClientUnblock(ctx, session.wire.id).Result()
		if n == 1 || err != nil {
			return
		}
		timer := time.NewTimer(time.Millisecond)
		<-timer.C
	}
}

func (r *reader) run() {
	defer r.s.wg.Done()
	defer r.disconnect()
	var wait backoff
	// What was asked ahead is still taken, to be given back with the rest.
	for r.s.ctx.Err() == nil || len(r.ahead) > 0 {
		plan, err := r.ahead, error(nil)
		if len(plan) == 0 {
			plan, err = r.plan()
		}
		if err == nil && len(plan) == 0 {
			r.rest(r.restFor())
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
		r.rest(r.mend(plan, err, &wait))
	}
}

// rest waits for d, or until something changes.
func (r *reader) rest(d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-r.signal:
	case <-timer.C:
	case <-r.s.ctx.Done():
	}
}

// restFor is how long to wait when no stream has room: streams with a backlog will have some soon.
func (r *reader) restFor() time.Duration {
	if len(r.hot) > 0 {
		return lull
	}
	return time.Second
}

// plan lists the streams with room and makes sure that each has its group.
func (r *reader) plan() ([]reading, error) {
	if r.s.settle.backlog() > maxUnflushed {
		r.rest(lull)
		if r.s.settle.backlog() > maxUnflushed {
			return nil, nil
		}
	}
	r.mu.Lock()
	sources := r.sources
	r.mu.Unlock()
	r.total = len(sources)
	now := time.Now()
	// While a few streams have a backlog, most reads leave the many idle ones out.
	if len(r.hot) > 0 && now.Sub(r.lastFull) < lull {
		sources = r.hot
	} else {
		r.lastFull = now
	}
	plan := make([]reading, 0, len(sources))
	var lacking []*source
	for _, src := range sources {
		if src.reader.Load() != r || now.Before(src.retry) || src.isLeaving() || !src.topic.hasRoom() {
			continue
		}
		if !src.grouped {
			lacking = append(lacking, src)
		}
		plan = append(plan, reading{src, src.position()})
	}
	if len(lacking) > 0 {
		if err := r.ensureGroups(lacking); err != nil {
			return plan, err
		}
	}
	return plan, nil
}

// read runs one XREADGROUP, where that was not asked ahead, and hands what comes to the topics.
func (r *reader) read(plan []reading) error {
	session, err := r.connect(plan[0].src.stream)
	if err != nil {
		return err
	}
	r.blocking.Store(true)
	defer r.blocking.Store(false)
	if len(r.ahead) == 0 {
		if err := r.ask(session, plan); err != nil {
			return err
		}
	}
	if err := session.wire.arrives(); err != nil {
		return err
	}
	if err := r.askAhead(session); err != nil {
		return err
	}
	r.hot, r.full = r.hot[:0], r.full[:0]
	return session.wire.streams(plan, func(i int, entries []stored) {
		p := plan[i]
		returns := p.src.returned()
		own, ok := p.src.advance(p.from, entries)
		if !ok {
			if p.from == newOnly && p.src.topic.over() { // else they come again
				fresh, _, _ := p.src.take(entries, false)
				leave(fresh)
				r.s.settle.release(fresh)
			}
			return
		}
		if own {
			r.s.keeper.kick()
		}
		r.s.accept(p.src, entries, false, returns)
		if len(entries) >= 8 && r.total > 1 {
			r.hot = append(r.hot, p.src)
		}
		if len(entries) == countFor(plan) && p.from == newOnly {
			r.full = append(r.full, p.src)
		}
	})
}

func countFor(plan []reading) int { return max(8, min(readCount, readBudget/len(plan))) }

// ask sends the read. Own pending entries never block it.
func (r *reader) ask(session *readSession, plan []reading) error {
	block := readBlock
	if session.node == nil {
		block = shortBlock
	}
	if len(r.hot) > 0 {
		block = -1
	}
	select {
	case <-r.signal: // whatever came before blocking was set shows here, what comes after it ends the read
		block = -1
	default:
	}
	return session.wire.ask(r.s.cfg.Group, r.s.cfg.Consumer, countFor(plan), block, plan)
}

// askAhead sends the next read while the answer to this one is under way, so that Redis works on it while we take that
// apart. It is for streams with a backlog, and leaves a read out where others are due.
func (r *reader) askAhead(session *readSession) error {
	r.ahead = nil
	if len(r.full) == 0 || r.s.ctx.Err() != nil || r.s.settle.backlog() > maxUnflushed {
		return nil
	}
	r.mu.Lock()
	total := len(r.sources)
	r.mu.Unlock()
	if total > len(r.full) && time.Since(r.lastFull) >= lull {
		return nil
	}
	plan := make([]reading, 0, len(r.full))
	for _, src := range r.full {
		if src.reader.Load() == r && !src.isLeaving() && src.position() == newOnly && src.topic.hasRoom() {
			plan = append(plan, reading{src, newOnly})
		}
	}
	if len(plan) == 0 {
		return nil
	}
	r.ahead = plan
	return session.wire.ask(r.s.cfg.Group, r.s.cfg.Consumer, countFor(plan), -1, plan)
}

func (r *reader) connect(stream string) (*readSession, error) {
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
	w, err := dialWire(r.s.ctx, node.Options())
	if err != nil {
		reroute(r.s.ctx, r.s.cfg.Readers)
		return nil, err
	}
	session := &readSession{wire: w, node: commands}
	// A server without CLIENT ID or UNBLOCK is read with short blocks instead.
	if err := commands.ClientUnblock(r.s.ctx, 0).Err(); w.id == 0 || err != nil && !isTransient(err) {
		session.node = nil
	}
	r.session.Store(session)
	return session, nil
}

func (r *reader) disconnect() {
	if session := r.session.Swap(nil); session != nil {
		_ = session.wire.conn.Close()
		reroute(r.s.ctx, r.s.cfg.Readers) // a slot may have moved
	}
}

// accept queues entries that were read or claimed, and settles those that cannot be worked on. returns is what the source
// said before.
func (s *Subscriber) accept(src *source, msgs []stored, claimed bool, returns int) int {
	if len(msgs) == 0 {
		return 0
	}
	fresh, dead, bad := src.take(msgs, claimed)
	src.topic.add(fresh, returns)
	if len(dead) > 0 {
		s.settle.drop(src, dead)
	}
	for _, m := range bad {
		if s.quarantine(src, m) {
			s.settle.drop(src, []string{m.id})
		}
	}
	return len(fresh)
}

// quarantine reports whether the entry may be removed from its stream.
func (s *Subscriber) quarantine(src *source, m stored) bool {
	if s.cfg.OnUndecodable == nil {
		s.cfg.Log.Warn("dropped a queue entry without id or data", "stream", src.stream, "entry", m.id)
		return true
	}
	ctx, cancel := context.WithTimeout(s.ctx, flushTimeout)
	defer cancel()
	if err := s.cfg.OnUndecodable(ctx, src.stream, m.id, m.values()); err != nil {
		s.cfg.Log.Warn("a queue entry without id or data stays pending", "stream", src.stream, "entry", m.id, "error", err)
		return false
	}
	return true
}
