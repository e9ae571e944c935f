package hub

import (
	"strings"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
)

// burstBytes limits the bytes that Broadcast gives to each client at a time, so no client delays others for long.
const burstBytes = 128 << 10

// Batch contains consecutive notifications of one partition.
type Batch struct {
	Partition int
	// Notifications are in the order of the log. Nobody may change them afterwards.
	Notifications []relay.Notification
	// Gap reports that entries before Notifications were lost. Broadcast sends a resync to the affected clients.
	Gap bool
	// End is the position after the batch. It is used if there is a Gap and no notification.
	End string
}

// Broadcast sends the notifications, in their order, to every client that wants them. It never waits for a client. Only
// one goroutine at a time may broadcast a partition. The relay's own notifications ("hubrelay.…") never reach a client,
// except [relay.TopicResync]. That reaches all clients of its hub, whatever their topics, or all clients if it has no
// hub.
func (h *Hub) Broadcast(b Batch) {
	f, _ := h.fanouts.Get().(*fanout)
	defer h.fanouts.Put(f)
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
			f.broadcastBurst(h, own, b.Partition, list[:n], allFeeds)
		} else {
			f.broadcastBurst(h, own, b.Partition, list[:n], hubFeeds)
			f.broadcastBurst(h, h.mergedFeed, b.Partition, list[:n], accountFeeds)
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

// fanout is the working memory of one Broadcast, kept for the next.
type fanout struct {
	feed        *feed
	positions   []streamid.Position // scratch: positions of the feed after one entry
	batch       []feedEntry
	jobs        []groupJob
	groupBurst  burst        // what a whole group gets
	clientBurst burst        // what one client gets whose grant covers only some of that
	onMatch     func(*group) // meet
	current     int          // the index into batch that visit is about

	queuedFrames, queuedBytes int
	compressed, saved         int // of these
	resyncedClients           int // clients that a resync of the log was queued for
}

// groupJob contains the entries of the batch for one group.
type groupJob struct {
	group   *group
	clients []*client
	indexes []int // into batch
}

// burst is consecutive frames for one client.
type burst struct {
	frames [][]byte
	scopes []scope // the different scopes of the frames
	size   int
	// How many of the frames are compressed, and by how much they are shorter.
	compressed, saved int
	resyncs           int    // how many of the frames are one
	concatenated      []byte // all frames joined, built on demand
	buffer            []byte // of joined, kept
}

// scope is the input of a grant's decision.
type scope struct{ hub, account string }

// isGlobalResync reports whether n is a resync for all clients.
func isGlobalResync(n *relay.Notification) bool { return n.Hub == "" && n.Topic == relay.TopicResync }

func newFanout() *fanout {
	f := &fanout{}
	f.onMatch = f.addMatch
	return f
}

// addMatch notes that a group wants the current notification.
func (f *fanout) addMatch(g *group) {
	if g.jobNumber == 0 {
		f.jobs = append(f.jobs, groupJob{group: g})
		g.jobNumber = len(f.jobs)
	}
	j := &f.jobs[g.jobNumber-1]
	if n := len(j.indexes); n == 0 || j.indexes[n-1] != f.current {
		j.indexes = append(j.indexes, f.current)
	}
}

// snapshotRecipients copies the members of the groups. The index is not used after it.
func (f *fanout) snapshotRecipients() {
	for i := range f.jobs {
		j := &f.jobs[i]
		j.clients, j.group.jobNumber = j.group.currentMembers(), 0
	}
}

// broadcastBurst sends one burst to the followers of the feed, under its lock, without waiting for sockets. It finds
// all recipients under one short lock of the index.
func (f *fanout) broadcastBurst(h *Hub, l *feed, partition int, list []relay.Notification, who feedScope) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.feed, f.batch = l, l.appendBatch(partition, list)
	f.positions = append(f.positions[:0], l.positions...)
	h.index.mu.Lock()
	for i := range list {
		f.current = i
		switch n := &list[i]; {
		case isGlobalResync(n):
			// Clients of an account receive cursors from the partition that reports them.
			if n.Account == anyAccount {
				f.addAllMatches(h, partition, who)
			} else {
				f.addAllMatches(h, partition, who&^accountFeeds)
			}
		case n.Topic == relay.TopicResync || !strings.HasPrefix(n.Topic, relay.OperationalPrefix):
			h.index.matchGroups(n, who, f.onMatch)
		}
	}
	f.snapshotRecipients()
	h.index.mu.Unlock()
	for i := range f.jobs {
		f.sendToGroup(&f.jobs[i])
	}
	f.reset(h)
}

// addAllMatches adds the current notification for all clients of a scope, except those of hubs in other partitions. The
// caller holds the index's lock.
func (f *fanout) addAllMatches(h *Hub, partition int, who feedScope) {
	h.index.allGroups(who, func(hub string) bool { return h.opts.Partition(hub) == partition }, f.onMatch)
}

// reset counts what was queued, lets go of everything that belongs to notifications and clients, and keeps the memory.
func (f *fanout) reset(h *Hub) {
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

// sendToGroup gives a group what it wants.
func (f *fanout) sendToGroup(j *groupJob) {
	f.groupBurst.reset()
	same := j.group.visibility != ""
	for _, i := range j.indexes {
		if !same || j.clients[0].canSee(f.batch[i].notification) {
			f.add(&f.groupBurst, i, j.group.format)
		}
	}
	if same {
		f.sendAll(j.clients)
		return
	}
	for _, c := range j.clients {
		f.sendFiltered(c, j)
	}
}

func (f *fanout) sendFiltered(c *client, j *groupJob) {
	b := &f.groupBurst
	for i := range b.scopes {
		if !c.allows(b.scopes[i].hub, b.scopes[i].account) {
			b = f.burstFor(c, j)
			break
		}
	}
	f.sendBurst(c, b)
}

func (f *fanout) sendBurst(c *client, b *burst) {
	if len(b.frames) > 0 && c.send(b) {
		f.addStats(b, 1)
	}
}

// sendAll sends the whole burst to clients that want all of it.
func (f *fanout) sendAll(clients []*client) {
	if len(f.groupBurst.frames) > 0 {
		f.addStats(&f.groupBurst, sendParallel(clients, &f.groupBurst))
	}
}

// addStats notes that some clients took b.
func (f *fanout) addStats(b *burst, clients int) {
	f.queuedFrames += clients * len(b.frames)
	f.queuedBytes += clients * b.size
	f.compressed += clients * b.compressed
	f.saved += clients * b.saved
	f.resyncedClients += clients * b.resyncs
}

// burstFor returns the part of the burst that c's grant covers.
func (f *fanout) burstFor(c *client, j *groupJob) *burst {
	f.clientBurst.reset()
	for _, i := range j.indexes {
		if c.canSee(f.batch[i].notification) {
			f.add(&f.clientBurst, i, j.group.format)
		}
	}
	return &f.clientBurst
}

func (f *fanout) add(b *burst, i int, as frameFormat) {
	e := &f.batch[i]
	b.add(f.frameFor(e, as), e.notification)
	if saved := e.savedFor(as); saved > 0 {
		b.compressed++
		b.saved += saved
	}
}

// frameFor returns the frame of an entry in one format. During a burst only the entry's own partition advances, so its
// cursor contains the feed's positions of the others.
func (f *fanout) frameFor(e *feedEntry, as frameFormat) []byte {
	if e.frames[as] == nil {
		f.positions[e.partitionIndex] = e.after
		return f.feed.frameFor(e, as, f.positions, true)
	}
	return e.frames[as]
}

func (b *burst) add(frame []byte, n *relay.Notification) {
	b.push(frame)
	if n.Topic == relay.TopicResync {
		b.resyncs++
		if n.Hub == "" {
			return // for all clients
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

func (b *burst) push(frame []byte) {
	b.frames = append(b.frames, frame)
	b.size += len(frame)
}

func (b *burst) reset() {
	clear(b.frames)
	clear(b.scopes)
	b.frames, b.scopes, b.concatenated = b.frames[:0], b.scopes[:0], nil
	b.size, b.compressed, b.saved, b.resyncs = 0, 0, 0, 0
}

// joinedBytes returns all frames as one slice, which is valid until the next reset.
func (b *burst) joinedBytes() []byte {
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
