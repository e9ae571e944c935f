package hub

import (
	"errors"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/cursor"
)

const (
	// chunkBytes is about how much a replay hands to its client before it waits until all of that is written.
	chunkBytes = 64 << 10
	// chunkEntries bounds what a replay looks at in one go, wanted or not.
	chunkEntries = 4096

	// chunkMakes bounds how many messages a replay compresses in one go, of which a long one counts for each KiB begun:
	// broadcasts wait for its line meanwhile.
	chunkMakes = 64

	replayRetryMin = 100 * time.Millisecond
	replayRetryMax = 2 * time.Second
)

// replay brings one client from its cursor to the broadcasts: from the log, then from what its line has kept, and where
// nothing is left it joins the index under the line's lock. It waits for its client's socket after each chunk, so what
// is queued for the client stays small, however slowly that reads.
type replay struct {
	hub          *Hub
	client       *client
	subscription *Subscription
	topics       map[string]bool // whether the client wants them
	line         *line
	wake         chan struct{} // the client may be idle, or leaving

	at     []cursor.Position // up to where the client has been given everything
	found  bool              // mark is where that is
	mark   mark
	proved int // the line's breaks when the positions were proved to be in the log

	frames [][]byte // the chunk
	size   int
	// How many of its frames are compressed, by how much they are shorter, and how many had to be made for it (see chunkMakes).
	compressed, saved, made int
	resyncs                 int // how many of its frames are one that the log holds

	from  Source
	pause time.Duration
}

// newReplay reads the subscription's cursor. There is nothing to replay behind one of a log with another number of
// partitions.
func (h *Hub) newReplay(c *client, s *Subscription) (*replay, *relay.Error) {
	read, err := cursor.Parse(s.After, h.opts.Partitions)
	switch {
	case errors.Is(err, cursor.ErrOtherLog):
		return nil, nil
	case err != nil:
		return nil, badCursor(err.Error())
	}
	r := &replay{hub: h, client: c, subscription: s, line: c.line, wake: make(chan struct{}, 1), proved: -1}
	r.at = make([]cursor.Position, len(r.line.at))
	for slot := range r.at {
		at, ok := read.At(r.line.first + slot)
		switch {
		case ok:
			r.at[slot] = at
		case s.Hub == "":
			return nil, badCursor("the cursor is of a hub's pipeline and cannot resume the one of an account over several partitions: begin without it")
		default:
			return nil, badCursor("the cursor is of another hub, in another partition: begin without it")
		}
	}
	return r, nil
}

func badCursor(problem string) *relay.Error {
	return relay.NewError(relay.CodeInvalidArgument, "the cursor in after or Last-Event-ID cannot be used: "+problem).With("parameter", "after")
}

// poke makes the replay look at its client again. A nil replay does nothing.
func (r *replay) poke() {
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
	defer r.hub.gone.Done()
	r.hub.opts.Observer.ReplayStarted()
	caughtUp := false
	for !caughtUp && r.ready() {
		caughtUp = r.step()
	}
	r.topics = nil // the client keeps its replay
	r.hub.opts.Observer.ReplayEnded(caughtUp)
}

// ready waits until the client is idle, and reports false when it leaves.
func (r *replay) ready() bool {
	for {
		idle, stays := r.client.idle()
		if idle || !stays {
			return stays
		}
		<-r.wake
	}
}

// step does one chunk and reports whether the client has joined.
func (r *replay) step() (joined bool) {
	l := r.line
	r.begin(FromLog)
	t := r.hub.takeTurn()
	l.mu.Lock()
	if !r.found || r.mark.next < l.base || r.proved != l.breaks {
		r.mark, r.found = l.find(r.at), true
	}
	breaks, missing := l.breaks, r.mark.missing
	if r.proved != breaks || missing >= 0 {
		var floor cursor.Position
		if missing >= 0 {
			floor = l.floor[missing]
		}
		l.mu.Unlock()
		r.hub.endTurn(t)
		r.found = false
		if r.proved == breaks {
			r.fromLog(missing, floor)
		} else if r.prove() {
			r.proved = breaks
		}
		return false
	}
	end := r.fromLine()
	if joined = end && r.mark.ahead == 0; joined {
		r.join()
	}
	var moved <-chan struct{}
	if end && !joined {
		moved = l.wait()
	}
	l.mu.Unlock()
	if !joined {
		r.feed()
	}
	r.hub.endTurn(t)
	if moved != nil {
		select {
		case <-moved:
		case <-r.wake:
		}
	}
	return joined
}

// join gives the client the last chunk and makes it one of those who get broadcasts. The caller holds the line's lock.
func (r *replay) join() {
	r.feed()
	c := r.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == live { // else nobody would take it out
		r.hub.index.join(c, r.subscription)
	}
}

func (r *replay) feed() {
	if len(r.frames) > 0 && r.client.feed(r.frames) {
		r.hub.opts.Observer.Queued(len(r.frames), r.size)
		r.hub.opts.Observer.Replayed(r.from, len(r.frames))
		if r.resyncs > 0 {
			r.hub.opts.Observer.Resynced(LostUpstream, r.resyncs)
		}
		if r.compressed > 0 {
			r.hub.opts.Observer.Compressed(r.compressed, r.saved)
		}
	}
	r.frames = nil
}

// begin begins a chunk.
func (r *replay) begin(from Source) {
	r.frames, r.from = nil, from
	r.size, r.compressed, r.saved, r.made, r.resyncs = 0, 0, 0, 0, 0
}

// full says whether the chunk is large enough.
func (r *replay) full() bool { return r.size >= chunkBytes || r.made >= chunkMakes }

func (r *replay) add(frame []byte) {
	r.frames = append(r.frames, frame)
	r.size += len(frame)
}

// share adds a frame of an entry that others get, too, and has it made where there is none yet.
func (r *replay) share(e *entry, produce func(as form)) {
	as := r.client.form
	if e.frames[as] == nil {
		produce(as)
		if as&deflated != 0 {
			r.made += (len(e.n.Data) + 1<<10 - 1) >> 10
		}
	}
	r.add(e.frames[as])
	if saved := e.saves(as); saved > 0 {
		r.compressed++
		r.saved += saved
	}
}

// fromLine takes a chunk from what the line has kept and reports whether nothing is left. The caller holds the line's
// lock. Frames are those of the line as soon as the client has seen just what the line holds up to there; before, as
// where it was at another node, whose merge of the partitions differs, they are its own.
func (r *replay) fromLine() (end bool) {
	l, end := r.line, false
	r.from = FromMemory
	for range chunkEntries {
		if end = r.mark.next == l.end(); end || r.full() {
			break
		}
		e := l.entry(r.mark.next)
		r.mark.next++
		at := &r.at[e.slot]
		wasAhead, fresh := e.prev.Compare(*at) < 0, e.at.Compare(*at) > 0
		if wasAhead && e.at.Compare(*at) >= 0 {
			r.mark.ahead--
		}
		if !fresh {
			continue
		}
		*at = e.at
		if r.wants(e.n) {
			r.addOfLine(e)
		}
	}
	return end
}

// addOfLine adds an entry of the line as the client gets it. What nobody else gets is not compressed.
func (r *replay) addOfLine(e *entry) {
	r.note(e.n)
	if r.mark.ahead > 0 {
		r.add(newFrame(e.n.Data, r.client.form, r.line.cursor(r.at)))
		return
	}
	r.share(e, func(as form) { r.line.frame(e, as, r.at, false) })
}

// prove asks the log about the positions that the line has not met, tells the client where something was lost, and
// reports whether the log answered and the client stays.
func (r *replay) prove() bool {
	lost := false
	for _, d := range r.mark.unproved {
		if _, stays := r.client.idle(); !stays {
			return false
		}
		at, gone, err := r.ask(d)
		if err != nil {
			r.rest(err)
			return false
		}
		r.at[d.slot], lost = at, lost || gone
	}
	r.pause = 0
	if lost {
		r.resync()
	}
	return true
}

// ask asks the log for one position as that has it, or where that is lost for where what is behind it begins. Where that has to
// be read afterwards it is read now, with others who want it.
func (r *replay) ask(d doubt) (at cursor.Position, lost bool, err error) {
	if d.kept {
		return r.hub.history.proof(r.hub.ctx, r.line.first+d.slot, r.at[d.slot])
	}
	_, at, lost, err = r.hub.history.since(r.hub.ctx, r.line.first+d.slot, r.at[d.slot])
	return at, lost, err
}

// fromLog takes a chunk of one partition from the log, up to what the line has kept.
func (r *replay) fromLog(slot int, floor cursor.Position) {
	s, at, lost, err := r.hub.history.since(r.hub.ctx, r.line.first+slot, r.at[slot])
	if err != nil {
		r.rest(err)
		return
	}
	r.at[slot] = at
	t := r.hub.takeTurn()
	defer r.hub.endTurn(t)
	r.pause = 0
	if lost { // it was trimmed while the client read
		r.resync()
		return
	}
	list, _ := s.behind(at)
	if len(list) == 0 || list[0].at.Compare(floor) > 0 {
		r.at[slot] = floor
		return
	}
	for i := range list {
		e := &list[i]
		if r.full() || e.at.Compare(floor) > 0 {
			break
		}
		r.at[slot] = e.at
		if r.wants(e.n) {
			r.addOfLog(s, e)
		}
	}
	r.feed()
}

// addOfLog adds an entry of the log as the client gets it. With one position all clients have the same cursor there.
func (r *replay) addOfLog(s *stretch, e *entry) {
	r.note(e.n)
	text := func() []byte { return cursor.Append(nil, r.hub.opts.Partitions, r.line.first, r.at) }
	if len(r.at) > 1 {
		r.add(newFrame(e.n.Data, r.client.form, text()))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.share(e, func(as form) { e.makeFrame(as, text(), r.hub.deflater, false) })
}

// note counts resyncs that the log holds.
func (r *replay) note(n *relay.Notification) {
	if n.Topic == relay.TopicResync {
		r.resyncs++
	}
}

// wants says whether the client is to get a notification, as index and broadcasts decide it.
func (r *replay) wants(n *relay.Notification) bool {
	s := r.subscription
	switch {
	case forAll(n):
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
		if r.topics == nil || len(r.topics) >= mostTopics {
			r.topics = make(map[string]bool)
		}
		r.topics[topic] = wanted
	}
	return wanted
}

// resync tells the client that something was lost, and from where it goes on.
func (r *replay) resync() {
	text := cursor.Append(nil, r.hub.opts.Partitions, r.line.first, r.at)
	r.begin(r.from)
	r.add(newFrame(relay.Resync(r.subscription.Hub, r.subscription.Account, lostBehindCursor), r.client.form, text))
	if r.client.feed(r.frames) {
		r.hub.opts.Observer.Queued(len(r.frames), r.size)
		r.hub.opts.Observer.Resynced(LostBehindCursor, 1)
	}
	r.begin(r.from)
}

// rest waits after the log could not be read.
func (r *replay) rest(err error) {
	r.pause = min(max(2*r.pause, replayRetryMin), replayRetryMax)
	r.hub.opts.Log.Debug("cannot read the log for a client that comes back, will try again", "key", r.client.key, "error", err)
	timer := time.NewTimer(r.pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.wake:
	}
}
