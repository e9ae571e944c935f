package hub

import (
	"strings"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/hub/frame"
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
	// End is the position behind the batch. It is looked at where there is a Gap and no notification.
	End string
}

// Broadcast gives the notifications, in their order, to every client that wants them. It never waits for a client. Only
// one goroutine at a time may broadcast a partition. The relay's own notifications ("hubrelay.…") never reach a client, but for
// [relay.TopicResync], which reaches all who follow its hub whatever topics they want, and without a hub everybody.
func (h *Hub) Broadcast(b Batch) {
	f, _ := h.broadcasts.Get().(*broadcast)
	defer h.broadcasts.Put(f)
	if b.Gap {
		h.resyncAll(f, b)
	}
	for list := b.Notifications; len(list) > 0; {
		n, size := 1, len(list[0].Data)
		for n < len(list) && size+len(list[n].Data) <= burstBytes {
			size += len(list[n].Data)
			n++
		}
		own := h.feeds[b.Partition]
		if h.mergedFeed == own {
			f.toFeed(h, own, b.Partition, list[:n], allFeeds)
		} else {
			f.toFeed(h, own, b.Partition, list[:n], hubFeeds)
			f.toFeed(h, h.mergedFeed, b.Partition, list[:n], accountFeeds)
		}
		list = list[n:]
	}
}

// feedScope says whose pipelines follow a line.
type feedScope uint8

const (
	hubFeeds feedScope = 1 << iota
	accountFeeds

	allFeeds = hubFeeds | accountFeeds
)

// broadcast is the working memory of one Broadcast, kept for the next.
type broadcast struct {
	feed        *feed
	positions   []streamid.Position // scratch: the positions of the line behind one entry
	batch       []feedEntry
	jobs        []groupJob
	groupBurst  frameBatch   // what a whole group gets
	clientBurst frameBatch   // what one client gets whose grant covers only some of that
	onMatch     func(*group) // meet
	current     int          // the index into batch that visit is about

	queuedFrames, queuedBytes int
	compressed, saved         int // of these
	resyncedClients           int // clients that a resync of the log was queued for
}

// groupJob is what a group wants of the batch.
type groupJob struct {
	group   *group
	clients []*connection
	indexes []int // into batch
}

// frameBatch is consecutive frames for one client.
type frameBatch struct {
	frames [][]byte
	scopes []scope // the different scopes of the frames
	size   int
	// How many of the frames are compressed, and by how much they are shorter.
	compressed, saved int
	resyncs           int    // how many of the frames are one
	concatenated      []byte // all frames in one, once somebody needed it
	buffer            []byte // of joined, kept
}

// scope is what a grant decides upon.
type scope struct{ hub, account string }

// isGlobalResync tells whether n is a resync for everybody.
func isGlobalResync(n *relay.Notification) bool { return n.Hub == "" && n.Topic == relay.TopicResync }

func newBroadcast() *broadcast {
	f := &broadcast{}
	f.onMatch = f.addMatch
	return f
}

// addMatch notes that a group wants the current notification.
func (f *broadcast) addMatch(g *group) {
	if g.Job == 0 {
		f.jobs = append(f.jobs, groupJob{group: g})
		g.Job = len(f.jobs)
	}
	j := &f.jobs[g.Job-1]
	if n := len(j.indexes); n == 0 || j.indexes[n-1] != f.current {
		j.indexes = append(j.indexes, f.current)
	}
}

// snapshotRecipients takes down who the groups are now. Nothing of the index is looked at behind it.
func (f *broadcast) snapshotRecipients() {
	for i := range f.jobs {
		j := &f.jobs[i]
		j.clients, j.group.Job = j.group.Members(), 0
	}
}

// toFeed broadcasts one burst to those who follow the line, under its lock: sockets are written to without waiting. All
// who want it are found under one short lock of the index.
func (f *broadcast) toFeed(h *Hub, l *feed, partition int, list []relay.Notification, who feedScope) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.feed, f.batch = l, l.appendBatch(partition, list)
	f.positions = append(f.positions[:0], l.positions...)
	h.index.mu.Lock()
	for i := range list {
		f.current = i
		switch n := &list[i]; {
		case isGlobalResync(n):
			// Who follows an account is told where it has come by the partition that tells them.
			if n.Account == anyAccount {
				f.addAllMatches(h, partition, who)
			} else {
				f.addAllMatches(h, partition, who&^accountFeeds)
			}
		case n.Topic == relay.TopicResync || !strings.HasPrefix(n.Topic, relay.OperationalPrefix):
			h.index.Match(n, who, f.onMatch)
		}
	}
	f.snapshotRecipients()
	h.index.mu.Unlock()
	for i := range f.jobs {
		f.toGroup(&f.jobs[i])
	}
	f.reset(h)
}

// addAllMatches notes that everybody of an audience wants the current notification, but for those who follow hubs of other partitions.
// The caller holds the index's lock.
func (f *broadcast) addAllMatches(h *Hub, partition int, who feedScope) {
	h.index.MatchAll(who, func(hub string) bool { return h.opts.Partition(hub) == partition }, f.onMatch)
}

// reset counts what was queued, lets go of everything that belongs to notifications and clients, and keeps the memory.
func (f *broadcast) reset(h *Hub) {
	if f.queuedFrames > 0 {
		h.opts.Observer.Queued(f.queuedFrames, f.queuedBytes)
	}
	if f.compressed > 0 {
		h.opts.Observer.Compressed(f.compressed, f.saved)
	}
	if f.resyncedClients > 0 {
		h.opts.Observer.Resynced(ResyncSource, f.resyncedClients)
	}
	clear(f.jobs)
	f.feed, f.batch, f.jobs = nil, nil, f.jobs[:0]
	f.groupBurst.reset()
	f.clientBurst.reset()
	f.queuedFrames, f.queuedBytes, f.compressed, f.saved, f.resyncedClients = 0, 0, 0, 0, 0
}

// toGroup gives a group what it wants.
func (f *broadcast) toGroup(j *groupJob) {
	f.groupBurst.reset()
	same := j.group.visibility != ""
	for _, i := range j.indexes {
		if !same || j.clients[0].canSee(f.batch[i].notification) {
			f.add(&f.groupBurst, i, j.group.format)
		}
	}
	if same {
		f.writeAll(j.clients)
		return
	}
	for _, c := range j.clients {
		f.writeFiltered(c, j)
	}
}

func (f *broadcast) writeFiltered(c *connection, j *groupJob) {
	b := &f.groupBurst
	for i := range b.scopes {
		if !c.allows(b.scopes[i].hub, b.scopes[i].account) {
			b = f.burstFor(c, j)
			break
		}
	}
	f.writeTo(c, b)
}

func (f *broadcast) writeTo(c *connection, b *frameBatch) {
	if len(b.frames) > 0 && c.write(b) {
		f.addStats(b, 1)
	}
}

// writeAll gives all to clients of which each takes all of it.
func (f *broadcast) writeAll(clients []*connection) {
	if len(f.groupBurst.frames) > 0 {
		f.addStats(&f.groupBurst, writeParallel(clients, &f.groupBurst))
	}
}

// addStats notes that some clients took b.
func (f *broadcast) addStats(b *frameBatch, clients int) {
	f.queuedFrames += clients * len(b.frames)
	f.queuedBytes += clients * b.size
	f.compressed += clients * b.compressed
	f.saved += clients * b.saved
	f.resyncedClients += clients * b.resyncs
}

// burstFor returns the part of the burst that c's grant covers.
func (f *broadcast) burstFor(c *connection, j *groupJob) *frameBatch {
	f.clientBurst.reset()
	for _, i := range j.indexes {
		if c.canSee(f.batch[i].notification) {
			f.add(&f.clientBurst, i, j.group.format)
		}
	}
	return &f.clientBurst
}

func (f *broadcast) add(b *frameBatch, i int, as frame.Encoding) {
	e := &f.batch[i]
	b.add(f.frameFor(e, as), e.notification)
	if saved := e.frames.Saved(as); saved > 0 {
		b.compressed++
		b.saved += saved
	}
}

// frameFor is an entry in one form. Only the entry's own partition moves during a run, so the cursor behind it has the
// line's other positions.
func (f *broadcast) frameFor(e *feedEntry, as frame.Encoding) []byte {
	if made := e.frames.Get(as); made != nil {
		return made
	}
	f.positions[e.partitionIndex] = e.after
	return f.feed.frameFor(e, as, f.positions, true)
}

func (b *frameBatch) add(frame []byte, n *relay.Notification) {
	b.push(frame)
	if n.Topic == relay.TopicResync {
		b.resyncs++
		if n.Hub == "" {
			return // it is for everybody
		}
	}
	s := scope{n.Hub, n.Account}
	for _, known := range b.scopes {
		if known == s {
			return
		}
	}
	b.scopes = append(b.scopes, s)
}

func (b *frameBatch) push(frame []byte) {
	b.frames = append(b.frames, frame)
	b.size += len(frame)
}

func (b *frameBatch) reset() {
	clear(b.frames)
	clear(b.scopes)
	b.frames, b.scopes, b.concatenated = b.frames[:0], b.scopes[:0], nil
	b.size, b.compressed, b.saved, b.resyncs = 0, 0, 0, 0
}

// joinedBytes returns all frames as one slice, which is valid until the next reset.
func (b *frameBatch) joinedBytes() []byte {
	if len(b.frames) == 1 {
		return b.frames[0]
	}
	if b.concatenated == nil {
		b.buffer = b.buffer[:0]
		for _, frame := range b.frames {
			b.buffer = append(b.buffer, frame...)
		}
		b.concatenated = b.buffer
	}
	return b.concatenated
}
