package hub

import (
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

// burstBytes bounds what Broadcast hands to each client in one go, so that nobody's turn takes long.
const burstBytes = 128 << 10

// Broadcast gives the notifications, in their order, to every client that wants them. It never waits for a client. The
// order of one hub holds as long as only one goroutine at a time broadcasts that hub's notifications. The relay's own
// notifications ("hubrelay.…") never reach a client.
func (h *Hub) Broadcast(list []relay.Notification) {
	f, _ := h.fanouts.Get().(*fanout)
	defer h.fanouts.Put(f)
	for len(list) > 0 {
		n, size := 1, len(list[0].Data)
		for n < len(list) && size+len(list[n].Data) <= burstBytes {
			size += len(list[n].Data)
			n++
		}
		f.run(h, list[:n])
		list = list[n:]
	}
}

// fanout is the working memory of one Broadcast, kept for the next.
type fanout struct {
	list    []relay.Notification
	frames  [][]byte // of list, built when the first client wants it
	touched []*room
	wanted  map[*room][]int // indexes into list
	jobs    []job
	all     burst // what a whole group gets
	part    burst // what one client gets whose grant covers only some of that
	attempt *attempt
	visit   func(*room)
	current int

	queuedFrames, queuedBytes int
}

type job struct {
	clients []*client
	filter  *filter
}

// burst is consecutive frames for one client.
type burst struct {
	frames [][]byte
	who    []scope // the different scopes of the frames
	size   int
	joined []byte // all frames in one, once somebody needed it
	buffer []byte // of joined, kept
}

// scope is what a grant decides upon.
type scope struct{ hub, account string }

func newFanout() *fanout {
	f := &fanout{wanted: make(map[*room][]int), attempt: newAttempt(0)}
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

// run broadcasts one burst. All rooms are found under one short lock; sockets are written to without any.
func (f *fanout) run(h *Hub, list []relay.Notification) {
	f.list = list
	for range list {
		f.frames = append(f.frames, nil)
	}
	h.index.mu.RLock()
	for i := range list {
		if strings.HasPrefix(list[i].Topic, relay.OperationalPrefix) {
			continue
		}
		f.current = i
		h.index.visit(&list[i], f.visit)
	}
	h.index.mu.RUnlock()
	for _, r := range f.touched {
		f.deliver(r, f.wanted[r])
	}
	if f.queuedFrames > 0 {
		h.opts.Observer.Queued(f.queuedFrames, f.queuedBytes)
	}
	f.reset()
}

// reset lets go of everything that belongs to notifications and clients, and keeps the memory.
func (f *fanout) reset() {
	clear(f.frames)
	clear(f.touched)
	clear(f.wanted)
	f.list, f.frames, f.touched = nil, f.frames[:0], f.touched[:0]
	f.all.reset()
	f.part.reset()
	f.queuedFrames, f.queuedBytes = 0, 0
}

// deliver gives the notifications at indexes to the clients of one room.
func (f *fanout) deliver(r *room, indexes []int) {
	r.mu.Lock()
	for _, g := range r.groups {
		for _, i := range indexes {
			if g.filter.match(f.list[i].Topic) {
				f.jobs = append(f.jobs, job{clients: g.audience(), filter: g.filter})
				break
			}
		}
	}
	r.mu.Unlock()
	for _, j := range f.jobs {
		f.all.reset()
		for _, i := range indexes {
			if j.filter.match(f.list[i].Topic) {
				f.all.add(f.frame(i), &f.list[i])
			}
		}
		for _, c := range j.clients {
			f.give(c, j.filter, indexes)
		}
	}
	clear(f.jobs)
	f.jobs = f.jobs[:0]
}

func (f *fanout) give(c *client, filter *filter, indexes []int) {
	b := &f.all
	for i := range b.who {
		if !c.allows(b.who[i].hub, b.who[i].account) {
			b = f.cut(c, filter, indexes)
			break
		}
	}
	if len(b.frames) > 0 && c.send(b, f.attempt) {
		f.queuedFrames += len(b.frames)
		f.queuedBytes += b.size
	}
}

// cut returns the part of the burst that c's grant covers.
func (f *fanout) cut(c *client, filter *filter, indexes []int) *burst {
	f.part.reset()
	for _, i := range indexes {
		if n := &f.list[i]; filter.match(n.Topic) && c.allows(n.Hub, n.Account) {
			f.part.add(f.frame(i), n)
		}
	}
	return &f.part
}

func (f *fanout) frame(i int) []byte {
	if f.frames[i] == nil {
		f.frames[i] = textFrame(f.list[i].Data)
	}
	return f.frames[i]
}

func (b *burst) add(frame []byte, n *relay.Notification) {
	b.frames = append(b.frames, frame)
	b.size += len(frame)
	s := scope{n.Hub, n.Account}
	for _, known := range b.who {
		if known == s {
			return
		}
	}
	b.who = append(b.who, s)
}

func (b *burst) reset() {
	clear(b.frames)
	clear(b.who)
	b.frames, b.who, b.size, b.joined = b.frames[:0], b.who[:0], 0, nil
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
