package dispatch

import (
	"context"
	"slices"
	"sort"
	"time"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
)

const (
	// minSpaceInterval and maxSpaceInterval limit the time between two measurements of full queues. spaceShare is the maximum
	// share of the time for them, as a divisor.
	minSpaceInterval = 20 * time.Millisecond
	maxSpaceInterval = time.Second
	spaceShare       = 50
	// minStuckInterval and maxStuckInterval are the same for the queues of stuck sinks. A sink is stuck if its queue has not shrunk
	// for stuckAge.
	minStuckInterval = time.Second
	maxStuckInterval = 5 * time.Second
	stuckAge         = time.Second
	// pageAge is the maximum age of a page of the log that several steps of catching up use. Entries can be erased during that time.
	pageAge = 100 * time.Millisecond
	// fullLogInterval is the minimum time between two log messages about full queues. A message names the queues that have been
	// full for fullLogAge.
	fullLogInterval = time.Minute
	fullLogAge      = 5 * time.Second
)

// catchUp is the state of a sink that the dispatcher does not serve. It gets its entries from the log, from its own position,
// while its queue has space. New sinks start like this, and sinks with a full queue are detached. So sinks that do not deliver
// need no further copies of events, and do not stop others.
type catchUp struct {
	position string
	// isFull is set while the queue has no space. fullSince is the time when that began.
	isFull    bool
	fullSince time.Time
	// isDetached is set if the sink was detached.
	isDetached bool
	// isStuck is set while a full queue does not shrink. Many stuck sinks must not slow the others down, so they are measured
	// rarely, and others get a larger part of the memory.
	isStuck bool
	// bytes is the size of the full queue when it was last measured, and shrunkAt the time when it became full or smaller.
	bytes    int64
	shrunkAt time.Time
}

// recordSize records the measured size of a full queue.
func (c *catchUp) recordSize(bytes int64) {
	now := time.Now()
	if bytes < c.bytes {
		c.shrunkAt = now
	}
	c.bytes, c.isStuck = bytes, now.Sub(c.shrunkAt) >= stuckAge
}

// setFull sets whether the queue of a sink that catches up has no space.
func (d *Dispatcher) setFull(sink int, isFull bool) {
	c := d.catchUps[sink]
	switch now := time.Now(); {
	case !isFull:
		c.isStuck = false
	case !c.isFull:
		c.fullSince, c.shrunkAt = now, now
		if check := now.Add(d.spaceInterval); check.Before(d.nextSpaceCheck) {
			d.nextSpaceCheck = check
		}
	}
	c.isFull = isFull
}

// updateStuckCount counts the stuck sinks. queueLimit needs the number often.
func (d *Dispatcher) updateStuckCount() {
	d.stuckCount = 0
	for _, c := range d.catchUps {
		if c.isStuck {
			d.stuckCount++
		}
	}
}

// detachFull detaches the sinks with a full queue. It returns true if the state must be read again.
func (d *Dispatcher) detachFull(ctx context.Context) (again bool, err error) {
	if total, _ := d.opts.Memory.QueueLimit(); total == 0 {
		return false, nil
	}
	var exceeded []int
	for i := range d.sinks {
		if d.catchUps[i] == nil && d.isOverLimit(i) {
			exceeded = append(exceeded, i)
		}
	}
	if len(exceeded) == 0 {
		return false, nil
	}
	if err := d.measureQueues(ctx, exceeded); err != nil {
		return true, err
	}
	var full []int
	var names []string
	for _, i := range exceeded {
		if d.isOverLimit(i) {
			full, names = append(full, i), append(names, d.sinks[i])
		}
	}
	if len(full) == 0 {
		return false, nil
	}
	generation, err := d.opts.Queues.DetachSinks(ctx, d.opts.Partition, d.position, d.generation, names)
	if err != nil || generation == 0 {
		return true, err
	}
	d.generation, d.allJoined = generation, false
	for _, i := range full {
		position := d.position
		if streamid.Compare(d.joinedAt[i], position) > 0 {
			position = d.joinedAt[i]
		}
		d.catchUps[i], d.joinedAt[i] = &catchUp{position: position, isDetached: true}, ""
		d.setFull(i, true)
	}
	return false, nil
}

// listCatchingUp returns the sinks that catch up and wait for space (isFull), or do not.
func (d *Dispatcher) listCatchingUp(isFull bool) []int {
	var list []int
	for i, c := range d.catchUps {
		if c.isFull == isFull {
			list = append(list, i)
		}
	}
	return list
}

var closedChannel = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// catchUpSignal returns a closed channel while a sink with space in its queue has to catch up, otherwise nil.
func (d *Dispatcher) catchUpSignal() <-chan struct{} {
	if len(d.listCatchingUp(false)) > 0 {
		return closedChannel
	}
	return nil
}

// catchUpSink takes one step with one of the sinks that catch up and have space. It returns true if the state must be read
// again, for example because the sink has caught up.
func (d *Dispatcher) catchUpSink(ctx context.Context) (again bool, err error) {
	sink := d.listCatchingUp(false)[0] // in the random order of a map
	state := d.catchUps[sink]
	space, err := d.measureSpace(ctx, sink)
	if err != nil {
		return false, err
	}
	if d.setFull(sink, space == 0); space == 0 {
		return false, nil
	}
	list, err := d.readPage(ctx, state.position)
	if err != nil {
		return false, err
	}
	r := d.newRequest(state.position)
	filter := &d.matcher.Sinks()[sink].Filter
	n, copied := 0, 0 // entries, bytes
	for ; n < len(list) && copied < space && !d.mustCountNow; n++ {
		if !filter.Match(list[n]) {
			continue
		}
		if found := d.admitMatches(&list[n], []int{sink}, 0); len(found) > 0 {
			r.Matches = append(r.Matches, queue.SinkMatch{ID: list[n].Cursor, Sinks: found})
			copied += int(sizeOf(&list[n]))
		}
	}
	r.CatchUpSink, r.To, r.EntriesCovered = d.sinks[sink], state.position, n
	switch {
	case n > 0:
		r.To = list[n-1].Cursor
	case len(list) == 0 && streamid.Compare(d.position, state.position) > 0:
		r.To = d.position
	}
	d.countCopy(sink, int64(copied))
	result, err := d.opts.Queues.Enqueue(ctx, r)
	if err != nil || !result.Committed {
		return true, err
	}
	d.recordResult(r, result)
	d.recordExcluded()
	d.addBytes(ctx, copied)
	if err := d.limitQueues(ctx, result.Lengths); err != nil {
		return true, err
	}
	if result.CaughtUp {
		if !state.isDetached {
			d.opts.Logger.InfoContext(ctx, "a sink has caught up with the log",
				"sink", r.CatchUpSink, "partition", d.opts.Partition)
		}
		return true, nil
	}
	state.position = r.To
	if d.mustCount {
		return false, d.countAccounts(ctx)
	}
	return false, nil
}

// checkSpace measures the full queues. Those with space are no longer full.
func (d *Dispatcher) checkSpace(ctx context.Context) error {
	var moving, stuck []int
	for _, i := range d.listCatchingUp(true) {
		if d.catchUps[i].isStuck {
			stuck = append(stuck, i)
		} else {
			moving = append(moving, i)
		}
	}
	interval, err := d.measureFull(ctx, moving)
	if err != nil {
		return err
	}
	d.spaceInterval = min(max(minSpaceInterval, interval), maxSpaceInterval) // one slow reply is no load
	d.nextSpaceCheck = time.Now().Add(d.spaceInterval)
	if len(stuck) > 0 && !time.Now().Before(d.nextStuckCheck) {
		if interval, err = d.measureFull(ctx, stuck); err != nil {
			return err
		}
		d.nextStuckCheck = time.Now().Add(min(max(minStuckInterval, interval), maxStuckInterval))
	}
	if len(moving) == 0 {
		d.nextSpaceCheck = d.nextStuckCheck
	}
	d.updateStuckCount()
	return nil
}

// measureFull measures full queues. It returns the time after which the next measurement does not exceed its share of the
// time.
func (d *Dispatcher) measureFull(ctx context.Context, sinks []int) (time.Duration, error) {
	if len(sinks) == 0 {
		return 0, nil
	}
	start := time.Now()
	if err := d.measureQueues(ctx, sinks); err != nil {
		return 0, err
	}
	interval := spaceShare * time.Since(start) * time.Duration(max(d.opts.Partitions, 1))
	for _, i := range sinks {
		d.catchUps[i].recordSize(d.sizes[i])
		limit := d.queueLimit(i)
		d.setFull(i, limit > 0 && d.sizes[i] > limit/2) // few large steps are cheaper than many small ones
	}
	return interval, nil
}

// logPage is a page of the log. Sinks that catch up read it together, because each takes only as much as its queue has space.
type logPage struct {
	after  string
	list   []relay.Notification
	readAt time.Time
}

// readPage returns notifications after a position in the log.
func (d *Dispatcher) readPage(ctx context.Context, after string) ([]relay.Notification, error) {
	if p := &d.page; len(p.list) > 0 && time.Since(p.readAt) < pageAge && streamid.Compare(after, p.after) >= 0 &&
		streamid.Compare(after, p.list[len(p.list)-1].Cursor) < 0 {
		first := sort.Search(len(p.list), func(i int) bool { return streamid.Compare(p.list[i].Cursor, after) > 0 })
		return p.list[first:], nil
	}
	list, _, err := d.readLog(ctx, after)
	d.page = logPage{after: after, list: list, readAt: time.Now()}
	return list, err
}

// keepAfter returns the position after which the log must stay for the sinks that catch up, or "".
func (d *Dispatcher) keepAfter() string {
	oldest := ""
	for _, c := range d.catchUps {
		if oldest == "" || streamid.Compare(c.position, oldest) < 0 {
			oldest = c.position
		}
	}
	return oldest
}

// logFull logs the sinks whose queue has been full for a while.
func (d *Dispatcher) logFull() {
	if time.Since(d.fullLogged) < fullLogInterval {
		return
	}
	var names []string
	for i, c := range d.catchUps {
		if c.isFull && time.Since(c.fullSince) >= fullLogAge {
			names = append(names, d.sinks[i])
		}
	}
	if len(names) == 0 {
		return
	}
	slices.Sort(names)
	d.fullLogged = time.Now()
	d.opts.Logger.Warn("the queues of sinks are full, further events wait in the log until the sinks have delivered some",
		"sinks", names, "partition", d.opts.Partition)
}
