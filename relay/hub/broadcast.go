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

// audience says which rooms follow a line.
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
	touched []*room
	wanted  map[*room][]int // indexes into batch
	jobs    []job
	all     burst // what a whole group gets
	part    burst // what one client gets whose grant covers only some of that
	visit   func(*room)
	current int

	queuedFrames, queuedBytes int
	compressed, saved         int // of these
	resynced                  int // clients that a resync of the log was queued for
}

type job struct {
	clients []*client
	manner
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

func newFanout() *fanout {
	f := &fanout{wanted: make(map[*room][]int)}
	f.visit = f.touch
	return f
}

func (f *fanout) touch(r *room) {
	indexes := f.wanted[r]
	if len(indexes) == 0 {
		f.touched = append(f.touched, r)
	}
	f.wanted[r] = append(indexes, f.current)
}

// run broadcasts one burst to those who follow the line, under its lock: sockets are written to without waiting. All
// rooms are found under one short lock of the index.
func (f *fanout) run(h *Hub, l *line, partition int, list []relay.Notification, who audience) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.line, f.batch = l, l.extend(partition, list)
	f.at = append(f.at[:0], l.at...)
	h.index.mu.RLock()
	for i := range list {
		resync := list[i].Topic == relay.TopicResync
		if !resync && strings.HasPrefix(list[i].Topic, relay.OperationalPrefix) {
			continue
		}
		f.current = i
		if resync && list[i].Hub == "" {
			h.index.visitAll(&list[i], who, func(hub string) bool { return h.opts.Partition(hub) == partition }, f.visit)
			continue
		}
		if who&hubRooms != 0 {
			h.index.visitHub(&list[i], f.visit)
		}
		if who&accountRooms != 0 {
			h.index.visitAccounts(&list[i], f.visit)
		}
	}
	h.index.mu.RUnlock()
	for _, r := range f.touched {
		f.deliver(r, f.wanted[r])
	}
	f.reset(h)
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
	clear(f.touched)
	clear(f.wanted)
	f.line, f.batch, f.touched = nil, nil, f.touched[:0]
	f.all.reset()
	f.part.reset()
	f.queuedFrames, f.queuedBytes, f.compressed, f.saved, f.resynced = 0, 0, 0, 0, 0
}

// deliver gives the notifications at indexes to the clients of one room.
func (f *fanout) deliver(r *room, indexes []int) {
	r.mu.Lock()
	for _, g := range r.groups {
		for _, i := range indexes {
			if g.filter.wants(f.batch[i].n) {
				f.jobs = append(f.jobs, job{g.audience(), g.manner})
				break
			}
		}
	}
	r.mu.Unlock()
	for _, j := range f.jobs {
		f.all.reset()
		same := j.sight != ""
		for _, i := range indexes {
			if n := f.batch[i].n; j.filter.wants(n) && (!same || j.clients[0].sees(n)) {
				f.add(&f.all, i, j.form)
			}
		}
		if same {
			f.sendAll(j.clients)
			continue
		}
		for _, c := range j.clients {
			f.give(c, j.manner, indexes)
		}
	}
	clear(f.jobs)
	f.jobs = f.jobs[:0]
}

func (f *fanout) give(c *client, as manner, indexes []int) {
	b := &f.all
	for i := range b.who {
		if !c.allows(b.who[i].hub, b.who[i].account) {
			b = f.cut(c, as, indexes)
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
func (f *fanout) cut(c *client, as manner, indexes []int) *burst {
	f.part.reset()
	for _, i := range indexes {
		if n := f.batch[i].n; as.filter.wants(n) && c.sees(n) {
			f.add(&f.part, i, as.form)
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
