package backbone

import (
	"context"
	"errors"
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
	conn *redis.Conn
	node redis.Cmdable // commands on the same server; nil where a blocked read cannot be ended
	id   int64
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
		n, err := session.node.ClientUnblock(ctx, session.id).Result()
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
		var streams []redis.XStream
		if err == nil {
			streams, err = r.read(plan)
		}
		if err == nil {
			wait.reset()
			r.distribute(plan, streams)
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
		return r.s.cfg.AckEvery
	}
	return time.Second
}

// plan lists the streams with room and makes sure that each has its group.
func (r *reader) plan() ([]reading, error) {
	if r.s.settle.backlog() > maxUnflushed {
		r.rest(r.s.cfg.AckEvery)
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
	if len(r.hot) > 0 && now.Sub(r.lastFull) < r.s.cfg.AckEvery {
		sources = r.hot
	} else {
		r.lastFull = now
	}
	plan := make([]reading, 0, len(sources))
	var lacking []*source
	for _, src := range sources {
		if src.reader.Load() != r || now.Before(src.retry) || !src.topic.hasRoom() {
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

// read runs one XREADGROUP. Own pending entries never block it.
func (r *reader) read(plan []reading) ([]redis.XStream, error) {
	session, err := r.connect(plan[0].src.stream)
	if err != nil {
		return nil, err
	}
	args := &redis.XReadGroupArgs{
		Group:    r.s.cfg.Group,
		Consumer: r.s.cfg.Consumer,
		Streams:  make([]string, 2*len(plan)),
		Count:    max(8, min(readCount, int64(readBudget/len(plan)))),
		Block:    readBlock,
	}
	for i, p := range plan {
		args.Streams[i] = p.src.stream
		args.Streams[len(plan)+i] = p.from
	}
	if session.node == nil {
		args.Block = shortBlock
	}
	if len(r.hot) > 0 {
		args.Block = -1
	}
	r.blocking.Store(true)
	select {
	case <-r.signal: // whatever came before the store above shows here, what comes after it ends the read
		args.Block = -1
	default:
	}
	var streams []redis.XStream
	if session.conn != nil {
		streams, err = session.conn.XReadGroup(r.s.ctx, args).Result()
	} else {
		streams, err = r.s.cfg.Readers.XReadGroup(r.s.ctx, args).Result()
	}
	r.blocking.Store(false)
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return streams, err
}

func (r *reader) connect(stream string) (*readSession, error) {
	if session := r.session.Load(); session != nil {
		return session, nil
	}
	session := &readSession{}
	node := nodeOf(r.s.ctx, r.s.cfg.Readers, stream)
	commands := nodeOf(r.s.ctx, r.s.cfg.Commands, stream)
	if node != nil && commands != nil {
		session.conn = node.Conn()
		id, err := session.conn.ClientID(r.s.ctx).Result()
		switch {
		case err == nil:
			session.id, session.node = id, commands
		case isTransient(err):
			_ = session.conn.Close()
			return nil, err
		}
		// A server without CLIENT ID or UNBLOCK is read with short blocks instead.
		if err := commands.ClientUnblock(r.s.ctx, 0).Err(); err != nil && !isTransient(err) {
			session.node = nil
		}
	}
	r.session.Store(session)
	return session, nil
}

func (r *reader) disconnect() {
	if session := r.session.Swap(nil); session != nil && session.conn != nil {
		_ = session.conn.Close()
	}
}

// nodeOf returns the client of the one server that holds the stream, or nil for a client that does not tell.
func nodeOf(ctx context.Context, c redis.UniversalClient, stream string) *redis.Client {
	switch c := c.(type) {
	case *redis.Client:
		return c
	case *redis.ClusterClient:
		if node, err := c.MasterForKey(ctx, stream); err == nil {
			return node
		}
	}
	return nil
}

// distribute hands what was read to the topics.
func (r *reader) distribute(plan []reading, streams []redis.XStream) {
	r.hot = r.hot[:0]
	i := 0
	for _, stream := range streams {
		// The answer keeps the order of the question.
		for i < len(plan) && plan[i].src.stream != stream.Stream {
			i++
		}
		if i == len(plan) {
			return
		}
		p := plan[i]
		p.src.advance(p.from, stream.Messages)
		r.s.accept(p.src, stream.Messages)
		if len(stream.Messages) >= 8 && r.total > 1 {
			r.hot = append(r.hot, p.src)
		}
	}
}

// accept queues entries that were read or claimed, and settles those that cannot be worked on.
func (s *Subscriber) accept(src *source, msgs []redis.XMessage) int {
	if len(msgs) == 0 {
		return 0
	}
	fresh, dead, bad := src.take(msgs)
	s.settle.outstanding.Add(int64(len(fresh)))
	src.topic.add(fresh)
	if len(dead) > 0 {
		s.settle.drop(src, dead)
	}
	for _, m := range bad {
		if s.quarantine(src, m) {
			s.settle.drop(src, []string{m.ID})
		}
	}
	return len(fresh)
}

// quarantine reports whether the entry may be removed from its stream.
func (s *Subscriber) quarantine(src *source, m redis.XMessage) bool {
	if s.cfg.OnUndecodable == nil {
		s.cfg.Log.Warn("dropped a queue entry without id or data", "stream", src.stream, "entry", m.ID)
		return true
	}
	ctx, cancel := context.WithTimeout(s.ctx, flushTimeout)
	defer cancel()
	if err := s.cfg.OnUndecodable(ctx, src.stream, m.ID, m.Values); err != nil {
		s.cfg.Log.Warn("a queue entry without id or data stays pending", "stream", src.stream, "entry", m.ID, "error", err)
		return false
	}
	return true
}
