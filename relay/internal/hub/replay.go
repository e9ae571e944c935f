package hub

import (
	"errors"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/hub/frame"
	"github.com/hubrelay/hubrelay/relay/internal/hub/history"
)

const (
	// replayChunkBytes is about how much a replay hands to its client before it waits until all of that is written.
	replayChunkBytes = 64 << 10
	// replayChunkEntries bounds what a replay looks at in one go, wanted or not.
	replayChunkEntries = 4096

	// replayChunkCompressions bounds how many messages a replay compresses in one go, of which a long one counts for each KiB begun:
	// broadcasts wait for its line meanwhile.
	replayChunkCompressions = 64

	replayRetryMin = 100 * time.Millisecond
	replayRetryMax = 2 * time.Second
)

// replay brings one client from its cursor to the broadcasts: from the log, then from what its line has kept, and where
// nothing is left it joins the index under the line's lock. It waits for its client's socket after each chunk, so what
// is queued for the client stays small, however slowly that reads.
type replay struct {
	hub          *Hub
	client       *connection
	subscription *Subscription
	topics       map[string]bool // whether the client wants them
	feed         *feed
	wake         chan struct{} // the client may be idle, or leaving

	positions      []streamid.Position // up to where the client has been given everything
	located        bool                // mark is where that is
	position       resumePoint
	verifiedResets int // the line's breaks when the positions were proved to be in the log

	frames [][]byte // the chunk
	size   int
	// How many of its frames are compressed, by how much they are shorter, and how many had to be made for it (see chunkMakes).
	compressed, saved, newlyCompressed int
	resyncs                            int // how many of its frames are one that the log holds

	from      ReplaySource
	retryWait time.Duration
}

// newReplay reads the subscription's cursor. There is nothing to replay behind one of a log with another number of
// partitions.
func (h *Hub) newReplay(c *connection, s *Subscription) (*replay, *relay.Error) {
	read, err := streamid.Parse(s.After, h.opts.Partitions)
	switch {
	case errors.Is(err, streamid.ErrOtherLog):
		return nil, nil
	case err != nil:
		return nil, cursorError(err.Error())
	}
	r := &replay{hub: h, client: c, subscription: s, feed: c.feed, wake: make(chan struct{}, 1), verifiedResets: -1}
	r.positions = make([]streamid.Position, len(r.feed.positions))
	for slot := range r.positions {
		at, ok := read.At(r.feed.firstPartition + slot)
		switch {
		case ok:
			r.positions[slot] = at
		case s.Hub == "":
			return nil, cursorError("the cursor is of a hub's pipeline and cannot resume the one of an account over several partitions: begin without it")
		default:
			return nil, cursorError("the cursor is of another hub, in another partition: begin without it")
		}
	}
	return r, nil
}

func cursorError(problem string) *relay.Error {
	return relay.NewError(relay.CodeInvalidArgument, "the cursor in after or Last-Event-ID cannot be used: "+problem).WithExtra("parameter", "after")
}

// wakeUp makes the replay look at its client again. A nil replay does nothing.
func (r *replay) wakeUp() {
	if r == nil {
		return
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run ends when the client has joined the broadcasts or leaves.
func (r *replay) run() {
	defer r.hub.running.Done()
	r.hub.opts.Observer.ReplayStarted()
	caughtUp := false
	for !caughtUp && r.waitIdle() {
		caughtUp = r.sendChunk()
	}
	r.topics = nil // the client keeps its replay
	r.hub.opts.Observer.ReplayEnded(caughtUp)
}

// waitIdle waits until the client is idle, and reports false when it leaves.
func (r *replay) waitIdle() bool {
	for {
		idle, stays := r.client.isIdle()
		if idle || !stays {
			return stays
		}
		<-r.wake
	}
}

// sendChunk does one chunk and reports whether the client has joined.
func (r *replay) sendChunk() (joined bool) {
	l := r.feed
	r.startChunk(FromLog)
	t := r.hub.acquireReplaySlot()
	l.mu.Lock()
	if !r.located || r.position.next < l.baseSeq || r.verifiedResets != l.resets {
		r.position, r.located = l.locate(r.positions), true
	}
	breaks, missing := l.resets, r.position.missingPartition
	if r.verifiedResets != breaks || missing >= 0 {
		var floor streamid.Position
		if missing >= 0 {
			floor = l.keptFrom[missing]
		}
		l.mu.Unlock()
		r.hub.releaseReplaySlot(t)
		r.located = false
		if r.verifiedResets == breaks {
			r.chunkFromLog(missing, floor)
		} else if r.verifyPositions() {
			r.verifiedResets = breaks
		}
		return false
	}
	end := r.chunkFromFeed()
	if joined = end && r.position.partitionsAhead == 0; joined {
		r.joinBroadcast()
	}
	var moved <-chan struct{}
	if end && !joined {
		moved = l.advancedChan()
	}
	l.mu.Unlock()
	if !joined {
		r.flushChunk()
	}
	r.hub.releaseReplaySlot(t)
	if moved != nil {
		select {
		case <-moved:
		case <-r.wake:
		}
	}
	return joined
}

// joinBroadcast gives the client the last chunk and makes it one of those who get broadcasts. The caller holds the line's lock.
func (r *replay) joinBroadcast() {
	r.flushChunk()
	c := r.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == stateLive { // else nobody would take it out
		r.hub.index.Add(c, r.subscription)
	}
}

func (r *replay) flushChunk() {
	if len(r.frames) > 0 && r.client.enqueueReplay(r.frames) {
		r.hub.opts.Observer.Queued(len(r.frames), r.size)
		r.hub.opts.Observer.Replayed(r.from, len(r.frames))
		if r.resyncs > 0 {
			r.hub.opts.Observer.Resynced(ResyncSource, r.resyncs)
		}
		if r.compressed > 0 {
			r.hub.opts.Observer.Compressed(r.compressed, r.saved)
		}
	}
	r.frames = nil
}

// startChunk begins a chunk.
func (r *replay) startChunk(from ReplaySource) {
	r.frames, r.from = nil, from
	r.size, r.compressed, r.saved, r.newlyCompressed, r.resyncs = 0, 0, 0, 0, 0
}

// chunkFull says whether the chunk is large enough.
func (r *replay) chunkFull() bool {
	return r.size >= replayChunkBytes || r.newlyCompressed >= replayChunkCompressions
}

func (r *replay) add(frame []byte) {
	r.frames = append(r.frames, frame)
	r.size += len(frame)
}

// addShared adds a frame of an entry that others get, too, and has it made where there is none yet.
func (r *replay) addShared(n *relay.Notification, frames *frame.Set, produce func(as frame.Encoding)) {
	as := r.client.format
	if frames.Get(as) == nil {
		produce(as)
		if as&frame.Deflated != 0 {
			r.newlyCompressed += (len(n.Data) + 1<<10 - 1) >> 10
		}
	}
	r.add(frames.Get(as))
	if saved := frames.Saved(as); saved > 0 {
		r.compressed++
		r.saved += saved
	}
}

// chunkFromFeed takes a chunk from what the line has kept and reports whether nothing is left. The caller holds the line's
// lock. Frames are those of the line as soon as the client has seen just what the line holds up to there; before, as
// where it was at another node, whose merge of the partitions differs, they are its own.
func (r *replay) chunkFromFeed() (end bool) {
	l, end := r.feed, false
	r.from = FromMemory
	for range replayChunkEntries {
		if end = r.position.next == l.nextSeq(); end || r.chunkFull() {
			break
		}
		e := l.entryAt(r.position.next)
		r.position.next++
		at := &r.positions[e.partitionIndex]
		wasAhead, fresh := e.before.Compare(*at) < 0, e.after.Compare(*at) > 0
		if wasAhead && e.after.Compare(*at) >= 0 {
			r.position.partitionsAhead--
		}
		if !fresh {
			continue
		}
		*at = e.after
		if r.matches(e.notification) {
			r.addFeedEntry(e)
		}
	}
	return end
}

// addFeedEntry adds an entry of the line as the client gets it. What nobody else gets is not compressed.
func (r *replay) addFeedEntry(e *feedEntry) {
	r.countResync(e.notification)
	if r.position.partitionsAhead > 0 {
		r.add(frame.New(e.notification.Data, r.client.format, r.feed.formatCursor(r.positions)))
		return
	}
	r.addShared(e.notification, &e.frames, func(as frame.Encoding) { r.feed.frameFor(e, as, r.positions, false) })
}

// verifyPositions asks the log about the positions that the line has not met, tells the client where something was lost, and
// reports whether the log answered and the client stays.
func (r *replay) verifyPositions() bool {
	lost := false
	for _, d := range r.position.unverified {
		if _, stays := r.client.isIdle(); !stays {
			return false
		}
		at, gone, err := r.readPosition(d)
		if err != nil {
			r.waitAfterError(err)
			return false
		}
		r.positions[d.slot], lost = at, lost || gone
	}
	r.retryWait = 0
	if lost {
		r.sendResync()
	}
	return true
}

// readPosition asks the log for one position as that has it, or where that is lost for where what is behind it begins. Where that has to
// be read afterwards it is read now, with others who want it.
func (r *replay) readPosition(d unverifiedPosition) (at streamid.Position, lost bool, err error) {
	if d.hasTail {
		return r.hub.history.Verify(r.hub.ctx, r.feed.firstPartition+d.slot, r.positions[d.slot])
	}
	_, at, lost, err = r.hub.history.ReadFrom(r.hub.ctx, r.feed.firstPartition+d.slot, r.positions[d.slot])
	return at, lost, err
}

// chunkFromLog takes a chunk of one partition from the log, up to what the line has kept.
func (r *replay) chunkFromLog(slot int, floor streamid.Position) {
	s, at, lost, err := r.hub.history.ReadFrom(r.hub.ctx, r.feed.firstPartition+slot, r.positions[slot])
	if err != nil {
		r.waitAfterError(err)
		return
	}
	r.positions[slot] = at
	t := r.hub.acquireReplaySlot()
	defer r.hub.releaseReplaySlot(t)
	r.retryWait = 0
	if lost { // it was trimmed while the client read
		r.sendResync()
		return
	}
	list, _ := s.EntriesAfter(at)
	if len(list) == 0 || list[0].After.Compare(floor) > 0 {
		r.positions[slot] = floor
		return
	}
	for i := range list {
		e := &list[i]
		if r.chunkFull() || e.After.Compare(floor) > 0 {
			break
		}
		r.positions[slot] = e.After
		if r.matches(e.Notification) {
			r.addLogEntry(s, e)
		}
	}
	r.flushChunk()
}

// addLogEntry adds an entry of the log as the client gets it. With one position all clients have the same cursor there.
func (r *replay) addLogEntry(s *history.Segment, e *history.Entry) {
	r.countResync(e.Notification)
	text := func() []byte { return streamid.Append(nil, r.hub.opts.Partitions, r.feed.firstPartition, r.positions) }
	if len(r.positions) > 1 {
		r.add(frame.New(e.Notification.Data, r.client.format, text()))
		return
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	r.addShared(e.Notification, &e.Frames, func(as frame.Encoding) {
		e.Frames.Make(e.Notification.Data, as, text(), r.hub.deflater, false)
	})
}

// countResync counts resyncs that the log holds.
func (r *replay) countResync(n *relay.Notification) {
	if n.Topic == relay.TopicResync {
		r.resyncs++
	}
}

// matches says whether the client is to get a notification, as index and broadcasts decide it.
func (r *replay) matches(n *relay.Notification) bool {
	s := r.subscription
	switch {
	case isGlobalResync(n):
		return s.Hub != "" || n.Account == anyAccount
	case n.Topic != relay.TopicResync && strings.HasPrefix(n.Topic, relay.OperationalPrefix):
		return false
	case s.Hub != "" && s.Hub != n.Hub:
		return false
	case s.Hub == "" && n.Account != "" && s.Account != n.Account && s.Account != anyAccount:
		return false
	}
	return r.wantsTopic(n.Topic) && s.Allows(n.Hub, n.Account)
}

// wantsTopic asks the patterns once for each topic: there may be many, and a line is held meanwhile.
func (r *replay) wantsTopic(topic string) bool {
	if topic == relay.TopicResync {
		return true
	}
	wanted, ok := r.topics[topic]
	if !ok {
		wanted = r.subscription.Topics.Match(topic)
		if r.topics == nil || len(r.topics) >= maxCachedTopics {
			r.topics = make(map[string]bool)
		}
		r.topics[topic] = wanted
	}
	return wanted
}

// sendResync tells the client that something was lost, and from where it goes on.
func (r *replay) sendResync() {
	text := streamid.Append(nil, r.hub.opts.Partitions, r.feed.firstPartition, r.positions)
	r.startChunk(r.from)
	r.add(frame.New(relay.ResyncMessage(r.subscription.Hub, r.subscription.Account, lostBehindCursor), r.client.format, text))
	if r.client.enqueueReplay(r.frames) {
		r.hub.opts.Observer.Queued(len(r.frames), r.size)
		r.hub.opts.Observer.Resynced(ResyncCursor, 1)
	}
	r.startChunk(r.from)
}

// waitAfterError waits after the log could not be read.
func (r *replay) waitAfterError(err error) {
	r.retryWait = min(max(2*r.retryWait, replayRetryMin), replayRetryMax)
	r.hub.opts.Log.Debug("cannot read the log for a client that comes back, will try again", "key", r.client.key, "error", err)
	timer := time.NewTimer(r.retryWait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.wake:
	}
}
