package clients

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
)

const (
	// replayChunkBytes is the approximate size of a chunk. The replay waits until its client has received a chunk.
	replayChunkBytes = 64 << 10
	// replayChunkEntries is the maximum number of entries that a chunk considers, including skipped ones.
	replayChunkEntries = 4096

	// replayChunkCompressions is the maximum number of compressions per chunk, where a message counts once per
	// started KiB, because broadcasts wait for the feed during that time.
	replayChunkCompressions = 64

	replayRetryMin = 100 * time.Millisecond
	replayRetryMax = 2 * time.Second
)

// replay sends one client the entries after its cursor: first from the log, then from the history of its feed. When
// no entry is left, it adds the client to the index under the lock of the feed. It waits for the client's socket
// after each chunk, so the write queue stays small even for a slow client.
type replay struct {
	server       *Server
	client       *connection
	subscription *Subscription
	topics       map[string]bool // cached results of wantsTopic
	feed         *feed
	wake         chan struct{} // signals that the client may be idle

	// ctx ends when the client leaves.
	ctx    context.Context
	cancel context.CancelFunc

	positions      []streamid.Position // the client has received everything up to these
	located        bool                // position is valid
	position       resumePoint
	verifiedResets int // resets of the feed when the positions were verified

	frames [][]byte // the chunk
	size   int
	// Compressed frames, bytes saved, and compressions for this chunk (see replayChunkCompressions).
	compressed, saved, newlyCompressed int
	resyncs                            int // number of resyncs among the frames

	from      ReplaySource
	retryWait time.Duration
}

// newReplay parses the cursor or the time of a subscription. It returns nil for a cursor of a log with another number of
// partitions, which cannot be replayed.
func (s *Server) newReplay(ctx context.Context, c *connection, sub *Subscription) (*replay, *relay.Error) {
	r := &replay{server: s, client: c, subscription: sub, feed: c.feed, wake: make(chan struct{}, 1), verifiedResets: -1}
	if t, err := time.Parse(time.RFC3339, sub.After); err == nil && s.opts.PositionsBefore != nil {
		r.positions, err = s.opts.PositionsBefore(ctx, r.feed.firstPartition, len(r.feed.positions), t)
		if err != nil {
			if ctx.Err() == nil { // otherwise the client has left
				s.opts.Log.Warn("stream from a time was rejected", "key_name", c.key, "error", err)
			}
			return nil, relay.NewError(relay.CodeNotReady, "the log could not be read; connect again")
		}
		return r, nil
	}
	read, err := s.cursors.Parse(sub.After, s.opts.Partitions)
	switch {
	case errors.Is(err, streamid.ErrOtherLog):
		return nil, nil
	case err != nil:
		return nil, cursorError(err.Error())
	}
	r.positions = make([]streamid.Position, len(r.feed.positions))
	for slot := range r.positions {
		at, ok := read.At(r.feed.firstPartition + slot)
		switch {
		case ok:
			r.positions[slot] = at
		case sub.Hub == "":
			return nil, cursorError("the cursor is of a hub's stream and cannot resume the one of an account " +
				"over several partitions: start without it")
		default:
			return nil, cursorError("the cursor is of another hub, in another partition: start without it")
		}
	}
	return r, nil
}

func cursorError(reason string) *relay.Error {
	detail := "the cursor in after or Last-Event-ID cannot be used: " + reason
	return relay.NewError(relay.CodeInvalidArgument, detail).WithExtra("parameter", "after")
}

// leave ends the replay, because its client leaves or has joined the broadcasts. It does nothing on a nil replay.
func (r *replay) leave() {
	if r != nil {
		r.cancel()
	}
}

// wakeUp makes the replay check its client again. It does nothing on a nil replay.
func (r *replay) wakeUp() {
	if r == nil {
		return
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run sends chunks until the client has joined the broadcasts or leaves.
func (r *replay) run() {
	defer r.server.running.Done()
	defer r.leave() // otherwise the server keeps the context as long as the client
	r.server.opts.Observer.ReplayStarted()
	caughtUp := false
	for !caughtUp && r.waitIdle() {
		caughtUp = r.sendChunk()
	}
	r.topics = nil // the connection keeps a reference to the replay
	r.server.opts.Observer.ReplayEnded(caughtUp)
}

// waitIdle waits until the client is idle. It returns false when the client leaves.
func (r *replay) waitIdle() bool {
	for {
		idle, stays := r.client.isIdle()
		if idle || !stays {
			return stays && r.ctx.Err() == nil // the server can stop before its clients leave
		}
		select {
		case <-r.wake:
		case <-r.ctx.Done():
			return false
		}
	}
}

// sendChunk sends one chunk and reports whether the client has joined the broadcasts.
func (r *replay) sendChunk() (joined bool) {
	f := r.feed
	r.startChunk(FromLog)
	t := r.server.replaySlots.acquire(r.ctx, r.turnOwner())
	if t == nil {
		return false
	}
	f.mu.Lock()
	if !r.located || r.position.next < f.baseSeq || r.verifiedResets != f.resets {
		r.position, r.located = f.locate(r.positions), true
	}
	breaks, missing := f.resets, r.position.missingPartition
	if r.verifiedResets != breaks || missing >= 0 {
		var floor streamid.Position
		if missing >= 0 {
			floor = f.keptFrom[missing]
		}
		f.mu.Unlock()
		r.server.replaySlots.release(t)
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
		moved = f.advancedChan()
	}
	f.mu.Unlock()
	if !joined {
		r.flushChunk()
	}
	r.server.replaySlots.release(t)
	if moved != nil {
		select {
		case <-moved:
		case <-r.ctx.Done():
		}
	}
	return joined
}

// joinBroadcast sends the last chunk and adds the client to the index. The caller holds the lock of the feed.
func (r *replay) joinBroadcast() {
	r.flushChunk()
	c := r.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == stateLive { // otherwise no one removes it again
		r.server.index.Add(c, r.subscription)
	}
}

func (r *replay) flushChunk() {
	if len(r.frames) > 0 && r.client.enqueueReplay(r.frames) {
		r.server.opts.Observer.Queued(len(r.frames), r.size)
		r.server.opts.Observer.Replayed(r.from, len(r.frames))
		if r.resyncs > 0 {
			r.server.opts.Observer.Resynced(ResyncSource, r.resyncs)
		}
		if r.compressed > 0 {
			r.server.opts.Observer.Compressed(r.compressed, r.saved)
		}
	}
	r.frames = nil
}

// startChunk starts a chunk.
func (r *replay) startChunk(from ReplaySource) {
	r.frames, r.from = nil, from
	r.size, r.compressed, r.saved, r.newlyCompressed, r.resyncs = 0, 0, 0, 0, 0
}

// chunkFull reports whether the chunk is large enough.
func (r *replay) chunkFull() bool {
	return r.size >= replayChunkBytes || r.newlyCompressed >= replayChunkCompressions
}

func (r *replay) add(frame []byte) {
	r.frames = append(r.frames, frame)
	r.size += len(frame)
}

// addShared adds a frame that other clients also receive. If it does not exist, produce makes it.
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

// countResync counts the resyncs stored in the log.
func (r *replay) countResync(n *relay.Notification) {
	if n.Topic == relay.TopicResync {
		r.resyncs++
	}
}

// matchesSubscription reports whether the client receives a notification, with the rules of the index and of
// broadcasts.
func (r *replay) matchesSubscription(n *relay.Notification) bool {
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

// wantsTopic matches the patterns once per topic, because there may be many and the feed is locked.
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

// sendResync sends a resync with the cursor from which the stream continues.
func (r *replay) sendResync() {
	text := r.server.cursors.Append(nil, r.server.opts.Partitions, r.feed.firstPartition, r.positions)
	r.startChunk(r.from)
	message := relay.ResyncMessage(r.subscription.Hub, r.subscription.Account, lostAfterCursor)
	r.add(frame.New(&relay.Notification{Data: message}, r.client.format, text))
	if r.client.enqueueReplay(r.frames) {
		r.server.opts.Observer.Queued(len(r.frames), r.size)
		r.server.opts.Observer.Resynced(ResyncCursor, 1)
	}
	r.startChunk(r.from)
}

// waitAfterError waits after a failed read of the log, with backoff.
func (r *replay) waitAfterError(err error) {
	if r.ctx.Err() != nil {
		return
	}
	r.retryWait = min(max(2*r.retryWait, replayRetryMin), replayRetryMax)
	r.server.opts.Log.Debug("log read for a replay failed",
		"key_name", r.client.key, "error", err, "retry_in", r.retryWait.String())
	timer := time.NewTimer(r.retryWait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.ctx.Done():
	}
}
