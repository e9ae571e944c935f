package backbone

import (
	"context"
	"fmt"
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
	for r.s.ctx.Err() == nil {
		plan, err := r.plan()
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
		if r.s.ctx.Err() == nil {
			r.rest(r.mend(plan, err, &wait))
		}
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

// read runs one XREADGROUP and hands what comes to the topics. Own pending entries never block it.
func (r *reader) read(plan []reading) error {
	session, err := r.connect(plan[0].src.stream)
	if err != nil {
		return err
	}
	count := max(8, min(readCount, readBudget/len(plan)))
	block := readBlock
	if session.node == nil {
		block = shortBlock
	}
	if len(r.hot) > 0 {
		block = -1
	}
	r.hot = r.hot[:0]
	r.blocking.Store(true)
	select {
	case <-r.signal: // whatever came before the store above shows here, what comes after it ends the read
		block = -1
	default:
	}
	err = session.wire.readGroup(r.s.cfg.Group, r.s.cfg.Consumer, count, block, plan, func(i int, entries []stored) {
		p := plan[i]
		returns := p.src.returned()
		own, ok := p.src.advance(p.from, entries)
		if !ok {
			return
		}
		if own {
			r.s.keeper.kick()
		}
		r.s.accept(p.src, entries, false, returns)
		if len(entries) >= 8 && r.total > 1 {
			r.hot = append(r.hot, p.src)
		}
	})
	r.blocking.Store(false)
	return err
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
	}
}

// nodeOf returns the client of the one server that holds the stream.
func nodeOf(ctx context.Context, c redis.UniversalClient, stream string) (*redis.Client, error) {
	switch c := c.(type) {
	case *redis.Client:
		return c, nil
	case *redis.ClusterClient:
		return c.MasterForKey(ctx, stream)
	}
	return nil, fmt.Errorf("streams are not read through a %T", c)
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
