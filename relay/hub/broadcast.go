package hub

import (
	"strings"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/cursor"
)

// burstBytes bounds what Broadcast hands to each client in one go, so that nobody's turn takes long.
const burstBytes = 128 << 10

// Batch is what came out of one partition of the log.
type Batch struct {
	Partition int
	// Notifications are in the order of the log. Nobody may change them afterwards.
	Notifications []relay.Notification
	// Gap says that something before the notifications was lost: whoever is connected is told.
	Gap bool
	// Last is the position behind the batch. It is looked at where there is a Gap and no notification.
	Last string
}

// Broadcast gives the notifications, in their order, to every client that wants them. It never waits for a client. Only
// one goroutine at a time may broadcast a partition. The relay's own notifications ("hubrelay.…") never reach a client, but for
// [relay.TopicResync], which reaches all who follow its hub whatever topics they want, and without a hub everybody.
func (h *Hub) Broadcast(b Batch) {
	f, _ := h.fanouts.Get().(*fanout)
	defer h.fanouts.Put(f)
	if b.Gap {
		h.resync(f, b)
	}
	for list := b.Notifications; len(list) > 0; {
		n, size := 1, len(list[0].Data)
		for n < len(list) && size+len(list[n].Data) <= burstBytes {
			size += len(list[n].Data)
			n++
		}
		own := h.lines[b.Partition]
		if h.merged == own {
			f.run(h, own, b.Partition, list[:n], everyone)
		} else {
			f.run(h, own, b.Partition, list[:n], hubRooms)
			f.run(h, h.merged, b.Partition, list[:n], accountRooms)
		}
		list = list[n:]
	}
}

// audience says whose pipelines follow a line.
type audience uint8

const (
	hubRooms audience = 1 << iota
	accountRooms

	everyone = hubRooms | accountRooms
)

// fanout is the working memory of one Broadcast, kept for the next.
type fanout struct {
	line    *line
	at      []cursor.Position // scratch: the positions of the line behind one entry
	batch   []entry
	jobs    []job
	all     burst        // what a whole group gets
	part    burst        // what one client gets whose grant covers only some of that
	visit   func(*group) // meet
	current int          // the index into batch that visit is about

	queuedFrames, queuedBytes int
	compressed, saved         int // of these
	resynced                  int // clients that a resync of the log was queued for
}

// job is what a group wants of the batch.
type job struct {
	group   *group
	clients []*client
	indexes []int // into batch
}

// burst is consecutive frames for one client.
type burst struct {
	frames [][]byte
	who    []scope // the different scopes of the frames
	size   int
	// How many of the frames are compressed, and by how much they are shorter.
	compressed, saved int
	resyncs           int    // how many of the frames are one
	joined            []byte // all frames in one, once somebody needed it
	buffer            []byte // of joined, kept
}

// scope is what a grant decides upon.
type scope struct{ hub, account string }

// forAll tells whether n is a resync for everybody.
func forAll(n *relay.Notification) bool { return n.Hub == "" && n.Topic == relay.TopicResync }

func newFanout() *fanout {
	f := &fanout{}
	f.visit = f.meet
	return f
}

// meet notes that a group wants the current notification.
func (f *fanout) meet(g *group) {
	if g.job == 0 {
		f.jobs = append(f.jobs, job{group: g})
		g.job = len(f.jobs)
	}
	j := &f.jobs[g.job-1]
	if n := len(j.indexes); n == 0 || j.indexes[n-1] != f.current {
		j.indexes = append(j.indexes, f.current)
	}
}

// seal takes down who the groups are now. Nothing of the index is looked at behind it.
func (f *fanout) seal() {
	for i := range f.jobs {
		j := &f.jobs[i]
		j.clients, j.group.job = j.group.audience(), 0
	}
}

// run broadcasts one burst to those who follow the line, under its lock: sockets are written to without waiting. All
// who want it are found under one short lock of the index.
func (f *fanout) run(h *Hub, l *line, partition int, list []relay.Notification, who audience) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.line, f.batch = l, l.extend(partition, list)
	f.at = append(f.at[:0], l.at...)
	h.index.mu.Lock()
	for i := range list {
		f.current = i
		switch n := &list[i]; {
		case forAll(n):
			// Who follows an account is told where it has come by the partition that tells them.
			if n.Account == anyAccount {
				f.meetAll(h, partition, who)
			} else {
				f.meetAll(h, partition, who&^accountRooms)
			}
		case n.Topic == relay.TopicResync || !strings.HasPrefix(n.Topic, relay.OperationalPrefix):
			h.index.visit(n, who, f.visit)
		}
	}
	f.seal()
	h.index.mu.Unlock()
	for i := range f.jobs {
		f.deliver(&f.jobs[i])
	}
	f.reset(h)
}

// meetAll notes that everybody of an audience wants the current notification, but for those who follow hubs of other partitions.
// The caller holds the index's lock.
func (f *fanout) meetAll(h *Hub, partition int, who audience) {
	h.index.visitAll(who, func(hub string) bool { return h.opts.Partition(hub) == partition }, f.visit)
}

// reset counts what was queued, lets go of everything that belongs to notifications and clients, and keeps the memory.
func (f *fanout) reset(h *Hub) {
	if f.queuedFrames > 0 {
		h.opts.Observer.Queued(f.queuedFrames, f.queuedBytes)
	}
	if f.compressed > 0 {
		h.opts.Observer.Compressed(f.compressed, f.saved)
	}
	if f.resynced > 0 {
		h.opts.Observer.Resynced(LostUpstream, f.resynced)
	}
	clear(f.jobs)
	f.line, f.batch, f.jobs = nil, nil, f.jobs[:0]
	f.all.reset()
	f.part.reset()
	f.queuedFrames, f.queuedBytes, f.compressed, f.saved, f.resynced = 0, 0, 0, 0, 0
}

// deliver gives a group what it wants.
func (f *fanout) deliver(j *job) {
	f.all.reset()
	same := j.group.sight != ""
	for _, i := range j.indexes {
		if !same || j.clients[0].sees(f.batch[i].n) {
			f.add(&f.all, i, j.group.form)
		}
	}
	if same {
		f.sendAll(j.clients)
		return
	}
	for _, c := range j.clients {
		f.give(c, j)
	}
}

func (f *fanout) give(c *client, j *job) {
	b := &f.all
	for i := range b.who {
		if !c.allows(b.who[i].hub, b.who[i].account) {
			b = f.cut(c, j)
			break
		}
	}
	f.send(c, b)
}

func (f *fanout) send(c *client, b *burst) {
	if len(b.frames) > 0 && c.send(b) {
		f.count(b, 1)
	}
}

// sendAll gives all to clients of which each takes all of it.
func (f *fanout) sendAll(clients []*client) {
	if len(f.all.frames) > 0 {
		f.count(&f.all, walkAll(clients, &f.all))
	}
}

// count notes that some clients took b.
func (f *fanout) count(b *burst, clients int) {
	f.queuedFrames += clients * len(b.frames)
	f.queuedBytes += clients * b.size
	f.compressed += clients * b.compressed
	f.saved += clients * b.saved
	f.resynced += clients * b.resyncs
}

// cut returns the part of the burst that c's grant covers.
func (f *fanout) cut(c *client, j *job) *burst {
	f.part.reset()
	for _, i := range j.indexes {
		if c.sees(f.batch[i].n) {
			f.add(&f.part, i, j.group.form)
		}
	}
	return &f.part
}

func (f *fanout) add(b *burst, i int, as form) {
	e := &f.batch[i]
	b.add(f.frame(e, as), e.n)
	if saved := e.saves(as); saved > 0 {
		b.compressed++
		b.saved += saved
	}
}

// frame is an entry in one form. Only the entry's own partition moves during a run, so the cursor behind it has the
// line's other positions.
func (f *fanout) frame(e *entry, as form) []byte {
	if e.frames[as] == nil {
		f.at[e.slot] = e.at
		return f.line.frame(e, as, f.at, true)
	}
	return e.frames[as]
}

func (b *burst) add(frame []byte, n *relay.Notification) {
	b.push(frame)
	if n.Topic == relay.TopicResync {
		b.resyncs++
		if n.Hub == "" {
			return // it is for everybody
		}
	}
	s := scope{n.Hub, n.Account}
	for _, known := range b.who {
		if known == s {
			return
		}
	}
	b.who = append(b.who, s)
}

func (b *burst) push(frame []byte) {
	b.frames = append(b.frames, frame)
	b.size += len(frame)
}

func (b *burst) reset() {
	clear(b.frames)
	clear(b.who)
	b.frames, b.who, b.joined = b.frames[:0], b.who[:0], nil
	b.size, b.compressed, b.saved, b.resyncs = 0, 0, 0, 0
}

// bytes returns all frames as one slice, which is valid until the next reset.
func (b *burst) bytes() []byte {
	if len(b.frames) == 1 {
		return b.frames[0]
	}
	if b.joined == nil {
		b.buffer = b.buffer[:0]
		for _, frame := range b.frames {
			b.buffer = append(b.buffer, frame...)
		}
		b.joined = b.buffer
	}
	return b.joined
}
