package dispatch

import (
	"context"
	"math"
	"time"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
)

const (
	// minQueueLimit is the minimum limit of a queue in a partition, in bytes. Copying in smaller steps would cost more than it
	// saves.
	minQueueLimit = 32 << 10
	// entryOverhead is a rough upper bound of the memory of an entry in addition to its data.
	entryOverhead = 200
	// minSpaceInterval and maxSpaceInterval limit the time between two measurements of full queues. spaceShare is the maximum
	// share of the time for them, as a divisor.
	minSpaceInterval = 20 * time.Millisecond
	maxSpaceInterval = time.Second
	spaceShare       = 50
	// fullLogInterval is the minimum time between two log messages about full queues. A message names the queues that have been
	// full for fullLogAge.
	fullLogInterval = time.Minute
	fullLogAge      = 5 * time.Second
	// measureShare is the share of the limit of all queues, as a divisor, after whose size in new entries and copies the
	// dispatcher measures the memory of Redis.
	measureShare = 16
)

// unknownSize makes the dispatcher measure a queue before it copies to it.
const unknownSize = math.MaxInt64 / 2

// queueSize describes the memory of a sink's queue and scheduled retries, as far as the dispatcher knows it.
//
// A sink with a full queue is detached: the dispatcher no longer serves it, and the sink catches up with the log when its
// queue has space. So sinks that do not deliver cost no further copies of events, and do not stop others.
type queueSize struct {
	// bytes is about an upper bound, because entries leave the queue without notice. It is measured when it exceeds the limit.
	bytes int64
	// isFull is set while a catching-up sink waits for space. fullSince is the time when that began.
	isFull    bool
	fullSince time.Time
	// isDetached is set from a full queue until the sink has caught up.
	isDetached bool
}

func (q *queueSize) add(n *relay.Notification) { q.bytes += int64(len(n.Data)) + entryOverhead }

// queueLimit returns the maximum memory of a sink's queue in this partition, in bytes. 0 is no limit.
func (d *Dispatcher) queueLimit(sink int) int64 {
	total, isFull := d.opts.Memory.QueueLimit()
	s := &d.matcher.Sinks()[sink]
	if total == 0 || !isFull && (s.BacklogBytes > 0 || s.CollectsBatches) {
		return 0
	}
	return max(total/int64(len(d.sinks))/int64(max(d.opts.Partitions, 1)), minQueueLimit)
}

// isOverLimit reports whether a queue may have exceeded its limit.
func (d *Dispatcher) isOverLimit(sink int) bool {
	limit := d.queueLimit(sink)
	return limit > 0 && d.sizes[sink].bytes > limit
}

// addBytes counts new bytes in Redis, and measures its memory if they are many.
func (d *Dispatcher) addBytes(ctx context.Context, n int) {
	d.bytesSinceMeasure += int64(n)
	if total, _ := d.opts.Memory.QueueLimit(); total > 0 && d.bytesSinceMeasure >= total/measureShare {
		d.bytesSinceMeasure = 0
		d.opts.Memory.Measure(ctx)
	}
}

// setFull sets whether a catching-up sink waits for space.
func (q *queueSize) setFull(isFull bool) {
	if isFull && !q.isFull {
		q.fullSince = time.Now()
	}
	q.isFull = isFull
}

// measureQueues replaces the upper bounds of the sizes of queues. The scheduled retries of a sink count in equal parts in
// all partitions.
func (d *Dispatcher) measureQueues(ctx context.Context, sinks []int) error {
	names := make([]string, len(sinks))
	for i, sink := range sinks {
		names[i] = d.sinks[sink]
	}
	sizes, err := d.opts.Queues.Sizes(ctx, d.opts.Partition, names)
	if err != nil {
		return err
	}
	retries, err := d.opts.RetrySizes(ctx, names)
	if err != nil {
		return err
	}
	for i, sink := range sinks {
		d.sizes[sink].bytes = sizes[i] + partitionShare(retries[i], d.opts.Partitions)
	}
	return nil
}

// detachFull detaches the sinks with a full queue. It returns true if the state must be read again.
func (d *Dispatcher) detachFull(ctx context.Context) (again bool, err error) {
	if total, _ := d.opts.Memory.QueueLimit(); total == 0 {
		return false, nil
	}
	var exceeded []int
	for i := range d.sinks {
		if _, isCatchingUp := d.catchingUpSinks[i]; !isCatchingUp && d.isOverLimit(i) {
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
		d.catchingUpSinks[i], d.joinedAt[i] = position, ""
		d.sizes[i].setFull(true)
		d.sizes[i].isDetached = true
	}
	return false, nil
}

// logFull logs the sinks whose queue has been full for a while.
func (d *Dispatcher) logFull() {
	if time.Since(d.fullLogged) < fullLogInterval {
		return
	}
	var names []string
	for i := range d.sizes {
		if d.sizes[i].isFull && time.Since(d.sizes[i].fullSince) >= fullLogAge {
			names = append(names, d.sinks[i])
		}
	}
	if len(names) == 0 {
		return
	}
	d.fullLogged = time.Now()
	d.opts.Logger.Warn("the queues of sinks are full, further events wait in the log until the sinks have delivered some",
		"sinks", names, "partition", d.opts.Partition)
}

// listCatchingUp returns the sinks that catch up and wait for space (isFull), or do not.
func (d *Dispatcher) listCatchingUp(isFull bool) []int {
	var list []int
	for i := range d.catchingUpSinks {
		if d.sizes[i].isFull == isFull {
			list = append(list, i)
		}
	}
	return list
}

// checkSpace measures the full queues. Those with space are no longer full.
func (d *Dispatcher) checkSpace(ctx context.Context) error {
	full, start := d.listCatchingUp(true), time.Now()
	if err := d.measureQueues(ctx, full); err != nil {
		return err
	}
	interval := spaceShare * time.Since(start) * time.Duration(max(d.opts.Partitions, 1))
	d.nextSpaceCheck = time.Now().Add(min(max(minSpaceInterval, interval), maxSpaceInterval)) // one slow reply is no load
	for _, i := range full {
		limit := d.queueLimit(i)
		d.sizes[i].setFull(limit > 0 && d.sizes[i].bytes > limit/2) // few large steps are cheaper than many small ones
	}
	return nil
}

// measureSpace returns the number of bytes that may be copied to a sink's queue in one step, 0 if it is full.
func (d *Dispatcher) measureSpace(ctx context.Context, sink int) (int, error) {
	if d.isOverLimit(sink) {
		if err := d.measureQueues(ctx, []int{sink}); err != nil {
			return 0, err
		}
	}
	limit := d.queueLimit(sink)
	if limit == 0 {
		return maxBytesPerScript, nil
	}
	space := int(min(maxBytesPerScript, limit-d.sizes[sink].bytes))
	d.sizes[sink].setFull(space <= 0)
	return max(space, 0), nil
}

// keepAfter returns the position after which the log must stay for the sinks that catch up, or "".
func (d *Dispatcher) keepAfter() string {
	oldest := ""
	for _, position := range d.catchingUpSinks {
		if oldest == "" || streamid.Compare(position, oldest) < 0 {
			oldest = position
		}
	}
	return oldest
}
