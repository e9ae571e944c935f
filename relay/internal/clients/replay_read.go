package clients

import (
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
	"github.com/hubrelay/hubrelay/relay/internal/clients/logcache"
)

// turnOwner returns the owner whose turns the replay uses.
func (r *replay) turnOwner() string { return r.client.lease.owner.replayOwner() }

// chunkFromFeed fills a chunk from the history of the feed and reports whether no entry is left. The caller holds the
// lock of the feed. The client receives shared frames once it has seen exactly the entries before next. Until then,
// for example after another node with another merge of the partitions, it receives its own frames.
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
		if r.matchesSubscription(e.notification) {
			r.addFeedEntry(e)
		}
	}
	return end
}

// addFeedEntry adds an entry of the feed. It does not compress frames that only this client receives.
func (r *replay) addFeedEntry(e *feedEntry) {
	r.countResync(e.notification)
	if r.position.partitionsAhead > 0 {
		r.add(frame.New(e.notification, r.client.format, r.feed.formatCursor(r.positions)))
		return
	}
	r.addShared(e.notification, &e.frames, func(as frame.Encoding) { r.feed.frameFor(e, as, r.positions, false) })
}

// verifyPositions checks the unverified positions against the log and sends a resync if entries were lost. It returns
// false if the log could not be read or the client leaves.
func (r *replay) verifyPositions() bool {
	lost := false
	for _, d := range r.position.unverified {
		if r.ctx.Err() != nil {
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

// readPosition returns one position as stored in the log, or the start of the next entries if it was lost. If these
// entries are needed later, it reads a segment that other replays can share.
func (r *replay) readPosition(d unverifiedPosition) (at streamid.Position, lost bool, err error) {
	if d.hasTail {
		return r.server.logCache.Verify(r.ctx, r.turnOwner(), r.feed.firstPartition+d.slot, r.positions[d.slot])
	}
	_, at, lost, err = r.server.logCache.ReadFrom(r.ctx, r.turnOwner(), r.feed.firstPartition+d.slot, r.positions[d.slot])
	return at, lost, err
}

// chunkFromLog fills a chunk of one partition from the log, up to the start of the feed's history.
func (r *replay) chunkFromLog(slot int, floor streamid.Position) {
	s, at, lost, err := r.server.logCache.ReadFrom(r.ctx, r.turnOwner(), r.feed.firstPartition+slot, r.positions[slot])
	if err != nil {
		r.waitAfterError(err)
		return
	}
	r.positions[slot] = at
	t := r.server.replaySlots.acquire(r.ctx, r.turnOwner())
	if t == nil {
		return
	}
	defer r.server.replaySlots.release(t)
	r.retryWait = 0
	if lost { // trimmed during the replay
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
		if r.matchesSubscription(e.Notification) {
			r.addLogEntry(s, e)
		}
	}
	r.flushChunk()
}

// addLogEntry adds an entry of the log. With one partition the cursor is the same for all clients, so they share the
// frame.
func (r *replay) addLogEntry(s *logcache.Segment, e *logcache.Entry) {
	r.countResync(e.Notification)
	text := func() []byte {
		return r.server.cursors.Append(nil, r.server.opts.Partitions, r.feed.firstPartition, r.positions)
	}
	if len(r.positions) > 1 {
		r.add(frame.New(e.Notification, r.client.format, text()))
		return
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	r.addShared(e.Notification, &e.Frames, func(as frame.Encoding) {
		e.Frames.Make(e.Notification, as, text(), r.server.deflater, false)
	})
}
