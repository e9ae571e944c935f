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
	bc, _ := s.broadcasts.Get().(*broadcast)
	defer s.broadcasts.Put(bc)
	if b.Gap {
		s.resyncAll(bc, b)
	}
	for list := b.Notifications; len(list) > 0; {
		n, size := 1, len(list[0].Data)
		for n < len(list) && size+len(list[n].Data) <= burstBytes {
			size += len(list[n].Data)
			n++
		}
		own := s.feeds[b.Partition]
		if s.mergedFeed == own {
			bc.toFeed(s, own, b.Partition, list[:n], allFeeds)
		} else {
			bc.toFeed(s, own, b.Partition, list[:n], hubFeeds)
			bc.toFeed(s, s.mergedFeed, b.Partition, list[:n], accountFeeds)
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
	bc := &broadcast{}
	bc.onMatch = bc.addMatch
	return bc
}

// addMatch adds the current notification to the job of a group.
func (bc *broadcast) addMatch(g *group) {
	if g.Job == 0 {
		bc.jobs = append(bc.jobs, groupJob{group: g})
		g.Job = len(bc.jobs)
	}
	j := &bc.jobs[g.Job-1]
	if n := len(j.indexes); n == 0 || j.indexes[n-1] != bc.current {
		j.indexes = append(j.indexes, bc.current)
	}
}

// snapshotRecipients stores the current members of the groups. The index is not used after this.
func (bc *broadcast) snapshotRecipients() {
	for i := range bc.jobs {
		j := &bc.jobs[i]
		j.clients, j.group.Job = j.group.Members(), 0
	}
}

// toFeed broadcasts one burst to the clients of a feed, under its lock. It finds all recipients under one short lock
// of the index. Writes do not block.
func (bc *broadcast) toFeed(s *Server, f *feed, partition int, list []relay.Notification, who feedScope) {
	f.mu.Lock()
	defer f.mu.Unlock()
	bc.feed, bc.batch = f, f.appendBatch(partition, list)
	bc.positions = append(bc.positions[:0], f.positions...)
	s.index.mu.Lock()
	for i := range list {
		bc.current = i
		switch n := &list[i]; {
		case isGlobalResync(n):
			// Only the copy for all accounts goes to account streams, so they receive it once.
			if n.Account == anyAccount {
				bc.addAllMatches(s, partition, who)
			} else {
				bc.addAllMatches(s, partition, who&^accountFeeds)
			}
		case n.Topic == relay.TopicResync || !strings.HasPrefix(n.Topic, relay.OperationalPrefix):
			s.index.Match(n, who, bc.onMatch)
		}
	}
	bc.snapshotRecipients()
	s.index.mu.Unlock()
	bc.recipients = append(bc.recipients[:0], make([]int, len(list))...)
	for i := range bc.jobs {
		bc.toGroup(&bc.jobs[i])
	}
	if s.opts.OnBroadcast != nil {
		for i, clients := range bc.recipients {
			if clients > 0 {
				s.opts.OnBroadcast(&list[i], clients)
			}
		}
	}
	bc.reset(s)
}

// addAllMatches adds the current notification to all groups of a scope, except groups of hubs in other partitions.
// The caller holds the lock of the index.
func (bc *broadcast) addAllMatches(s *Server, partition int, who feedScope) {
	s.index.MatchAll(who, func(hub string) bool { return s.opts.Partition(hub) == partition }, bc.onMatch)
}

// reset reports the counts and removes references to notifications and clients. It keeps the memory.
func (bc *broadcast) reset(s *Server) {
	if bc.queuedFrames > 0 {
		s.opts.Observer.Queued(bc.queuedFrames, bc.queuedBytes)
	}
	if bc.compressed > 0 {
		s.opts.Observer.Compressed(bc.compressed, bc.saved)
	}
	if bc.resyncedClients > 0 {
		s.opts.Observer.Resynced(ResyncSource, bc.resyncedClients)
	}
	clear(bc.jobs)
	bc.feed, bc.batch, bc.jobs = nil, nil, bc.jobs[:0]
	bc.groupBurst.reset()
	bc.clientBurst.reset()
	bc.queuedFrames, bc.queuedBytes, bc.compressed, bc.saved, bc.resyncedClients = 0, 0, 0, 0, 0
}

// toGroup sends a job to its group. Clients with the same visibility share one burst.
func (bc *broadcast) toGroup(j *groupJob) {
	bc.groupBurst.reset()
	same := j.group.visibility != ""
	for _, i := range j.indexes {
		if !same || j.clients[0].canSee(bc.batch[i].notification) {
			bc.add(&bc.groupBurst, i, j.group.format)
		}
	}
	if same {
		if len(bc.groupBurst.frames) > 0 {
			bc.addStats(&bc.groupBurst, writeParallel(j.clients, &bc.groupBurst))
		}
		return
	}
	for _, c := range j.clients {
		bc.writeFiltered(c, j)
	}
}

func (bc *broadcast) writeFiltered(c *connection, j *groupJob) {
	b := &bc.groupBurst
	for i := range b.scopes {
		if !c.allows(b.scopes[i].hub, b.scopes[i].account) {
			b = bc.burstFor(c, j)
			break
		}
	}
	bc.writeTo(c, b)
}

func (bc *broadcast) writeTo(c *connection, b *frameBatch) {
	if len(b.frames) > 0 && c.write(b) {
		bc.addStats(b, 1)
	}
}

// addStats counts a frameBatch that clients accepted.
func (bc *broadcast) addStats(b *frameBatch, clients int) {
	bc.queuedFrames += clients * len(b.frames)
	bc.queuedBytes += clients * b.size
	bc.compressed += clients * b.compressed
	bc.saved += clients * b.saved
	bc.resyncedClients += clients * b.resyncs
	for _, i := range b.indexes {
		bc.recipients[i] += clients
	}
}

// burstFor returns the part of the burst that the grant of c covers.
func (bc *broadcast) burstFor(c *connection, j *groupJob) *frameBatch {
	bc.clientBurst.reset()
	for _, i := range j.indexes {
		if c.canSee(bc.batch[i].notification) {
			bc.add(&bc.clientBurst, i, j.group.format)
		}
	}
	return &bc.clientBurst
}

func (bc *broadcast) add(b *frameBatch, i int, as frame.Encoding) {
	e := &bc.batch[i]
	b.add(bc.frameFor(e, as), e.notification)
	b.indexes = append(b.indexes, i)
	if saved := e.frames.Saved(as); saved > 0 {
		b.compressed++
		b.saved += saved
	}
}

// frameFor returns an entry in one encoding. During a broadcast only the partition of the entry advances, so the
// cursor after the entry has the other positions of the feed.
func (bc *broadcast) frameFor(e *feedEntry, as frame.Encoding) []byte {
	if made := e.frames.Get(as); made != nil {
		return made
	}
	bc.positions[e.partitionIndex] = e.after
	return bc.feed.frameFor(e, as, bc.positions, true)
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
