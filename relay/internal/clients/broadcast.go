package clients

import (
	"strings"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
)

// burstBytes limits how much Broadcast writes to each client before it continues with the next client.
const burstBytes = 128 << 10

// Batch is a part of one partition of the log.
type Batch struct {
	Partition int
	// Notifications are in the order of the log. They must not be changed afterwards.
	Notifications []relay.Notification
	// Gap reports that entries before Notifications were lost. Broadcast sends a resync to all clients of the
	// partition.
	Gap bool
	// End is the position after the batch. It is used if there is a Gap and no notification.
	End string
}

// Broadcast sends the notifications, in order, to every client that matches. It never waits for a client, and with a
// CoalesceDelay it may broadcast later: see [Server.Flush]. Only one goroutine at a time may broadcast a partition.
//
// Clients do not receive the relay's own notifications ("hubrelay.…"), except [relay.TopicResync]. That goes to all
// clients of its hub regardless of their topics, and without a hub to all clients.
func (s *Server) Broadcast(b Batch) {
	if s.opts.CoalesceDelay > 0 {
		s.coalescers[b.Partition].add(b)
		return
	}
	s.broadcastNow(b)
}

// Flush broadcasts what [Server.Broadcast] has delayed for a partition. Call it after the last Broadcast.
func (s *Server) Flush(partition int) { s.coalescers[partition].flushNow() }

func (s *Server) broadcastNow(b Batch) {
	f, _ := s.broadcasts.Get().(*broadcast)
	defer s.broadcasts.Put(f)
	if b.Gap {
		s.resyncAll(f, b)
	}
	for list := b.Notifications; len(list) > 0; {
		n, size := 1, len(list[0].Data)
		for n < len(list) && size+len(list[n].Data) <= burstBytes {
			size += len(list[n].Data)
			n++
		}
		own := s.feeds[b.Partition]
		if s.mergedFeed == own {
			f.toFeed(s, own, b.Partition, list[:n], allFeeds)
		} else {
			f.toFeed(s, own, b.Partition, list[:n], hubFeeds)
			f.toFeed(s, s.mergedFeed, b.Partition, list[:n], accountFeeds)
		}
		list = list[n:]
	}
}

// feedScope selects the streams that follow a feed.
type feedScope uint8

const (
	hubFeeds feedScope = 1 << iota
	accountFeeds

	allFeeds = hubFeeds | accountFeeds
)

// broadcast is the reusable memory of one Broadcast.
type broadcast struct {
	feed        *feed
	positions   []streamid.Position // scratch: the positions of the feed after one entry
	batch       []feedEntry
	jobs        []groupJob
	groupBurst  frameBatch   // for a whole group
	clientBurst frameBatch   // for a client whose grant covers only a part of it
	onMatch     func(*group) // addMatch
	current     int          // index into batch of the current notification
	recipients  []int        // number of clients, by index into batch

	queuedFrames, queuedBytes int
	compressed, saved         int // of the queued frames
	resyncedClients           int // clients that a resync of the log was queued for
}

// groupJob is the part of a batch that one group receives.
type groupJob struct {
	group   *group
	clients []*connection
	indexes []int // into batch
}

// frameBatch is a series of frames for one client.
type frameBatch struct {
	frames            [][]byte
	indexes           []int   // into broadcast.batch, of the frames
	scopes            []scope // the different scopes of the frames
	size              int
	compressed, saved int    // compressed frames, and bytes saved
	resyncs           int    // number of resyncs among the frames
	concatenated      []byte // all frames, if needed
	buffer            []byte // reused for concatenated
}

// scope holds the arguments of Subscription.Allows.
type scope struct{ hub, account string }

// isGlobalResync reports whether n is a resync for all hubs.
func isGlobalResync(n *relay.Notification) bool { return n.Hub == "" && n.Topic == relay.TopicResync }

func newBroadcast() *broadcast {
	f := &broadcast{}
	f.onMatch = f.addMatch
	return f
}

// addMatch adds the current notification to the job of a group.
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

// snapshotRecipients stores the current members of the groups. The index is not used after this.
func (f *broadcast) snapshotRecipients() {
	for i := range f.jobs {
		j := &f.jobs[i]
		j.clients, j.group.Job = j.group.Members(), 0
	}
}

// toFeed broadcasts one burst to the clients of a feed, under its lock. It finds all recipients under one short lock
// of the index. Writes do not block.
func (f *broadcast) toFeed(h *Server, l *feed, partition int, list []relay.Notification, who feedScope) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.feed, f.batch = l, l.appendBatch(partition, list)
	f.positions = append(f.positions[:0], l.positions...)
	h.index.mu.Lock()
	for i := range list {
		f.current = i
		switch n := &list[i]; {
		case isGlobalResync(n):
			// Only the copy for all accounts goes to account streams, so they receive it once.
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
	f.recipients = append(f.recipients[:0], make([]int, len(list))...)
	for i := range f.jobs {
		f.toGroup(&f.jobs[i])
	}
	if h.opts.OnBroadcast != nil {
		for i, clients := range f.recipients {
			if clients > 0 {
				h.opts.OnBroadcast(&list[i], clients)
			}
		}
	}
	f.reset(h)
}

// addAllMatches adds the current notification to all groups of a scope, except groups of hubs in other partitions.
// The caller holds the lock of the index.
func (f *broadcast) addAllMatches(h *Server, partition int, who feedScope) {
	h.index.MatchAll(who, func(hub string) bool { return h.opts.Partition(hub) == partition }, f.onMatch)
}

// reset reports the counts and removes references to notifications and clients. It keeps the memory.
func (f *broadcast) reset(h *Server) {
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

// toGroup sends a job to its group. Clients with the same visibility share one burst.
func (f *broadcast) toGroup(j *groupJob) {
	f.groupBurst.reset()
	same := j.group.visibility != ""
	for _, i := range j.indexes {
		if !same || j.clients[0].canSee(f.batch[i].notification) {
			f.add(&f.groupBurst, i, j.group.format)
		}
	}
	if same {
		if len(f.groupBurst.frames) > 0 {
			f.addStats(&f.groupBurst, writeParallel(j.clients, &f.groupBurst))
		}
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

// addStats counts a frameBatch that clients accepted.
func (f *broadcast) addStats(b *frameBatch, clients int) {
	f.queuedFrames += clients * len(b.frames)
	f.queuedBytes += clients * b.size
	f.compressed += clients * b.compressed
	f.saved += clients * b.saved
	f.resyncedClients += clients * b.resyncs
	for _, i := range b.indexes {
		f.recipients[i] += clients
	}
}

// burstFor returns the part of the burst that the grant of c covers.
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
	b.indexes = append(b.indexes, i)
	if saved := e.frames.Saved(as); saved > 0 {
		b.compressed++
		b.saved += saved
	}
}

// frameFor returns an entry in one encoding. During a broadcast only the partition of the entry advances, so the
// cursor after the entry has the other positions of the feed.
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
			return // no grant is needed
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
	b.frames, b.indexes, b.scopes, b.concatenated = b.frames[:0], b.indexes[:0], b.scopes[:0], nil
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
