package dispatch

import (
	"context"
	"math"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// minQueueLimit is the minimum limit of a queue in a partition, in bytes. Copying in smaller steps would cost more than it
	// saves.
	minQueueLimit = 32 << 10
	// entryOverhead is a rough upper bound of the memory of an entry in addition to its data.
	entryOverhead = 200
	// movingShare is the share of the memory of all queues, as a divisor, that sinks which are not stuck have in addition, in equal
	// parts. It only matters while many are stuck.
	movingShare = 4
	// measureShare is the share of the limit of all queues, as a divisor, after whose size in new entries and copies the
	// dispatcher measures the memory of Redis.
	measureShare = 16
	// minMeasureBytes is the minimum of that size.
	minMeasureBytes = 64 << 10
)

// unknownSize makes the dispatcher measure a queue before it copies to it.
const unknownSize = math.MaxInt64 / 2

// sizeOf returns the memory of a copy of a notification.
func sizeOf(n *relay.Notification) int64 { return int64(len(n.Data)) + entryOverhead }

// queueLimit returns the maximum memory of a sink's queue in this partition, in bytes. 0 is no limit.
func (d *Dispatcher) queueLimit(sink int) int64 {
	total, isFull := d.opts.Memory.QueueLimit()
	s := &d.matcher.Sinks()[sink]
	if total == 0 || !isFull && (s.BacklogBytes > 0 || s.CollectsBatches) {
		return 0
	}
	part := total / int64(len(d.sinks))
	if c := d.catchUps[sink]; c == nil || !c.isStuck {
		part = max(part, total/movingShare/int64(max(len(d.sinks)-d.stuckCount, 1)))
	}
	return max(part/int64(max(d.opts.Partitions, 1)), minQueueLimit)
}

// isOverLimit reports whether a queue may have exceeded its limit.
func (d *Dispatcher) isOverLimit(sink int) bool {
	limit := d.queueLimit(sink)
	return limit > 0 && d.sizes[sink] > limit
}

// addBytes counts new bytes in Redis, and measures its memory if they are many.
func (d *Dispatcher) addBytes(ctx context.Context, n int) {
	d.bytesSinceMeasure += int64(n)
	after := int64(maxBytesPerScript) // if the memory was not measured yet
	if total, _ := d.opts.Memory.QueueLimit(); total > 0 {
		after = max(total/measureShare, minMeasureBytes)
	}
	if d.bytesSinceMeasure >= after {
		d.bytesSinceMeasure = 0
		d.opts.Memory.Measure(ctx)
	}
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
		d.sizes[sink] = sizes[i] + partitionShare(retries[i], d.opts.Partitions)
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
	return int(max(min(maxBytesPerScript, limit-d.sizes[sink]), 0)), nil
}

// partitionShare returns a partition's share of a backlog, rounded up.
func partitionShare(backlog int64, partitions int) int64 {
	n := int64(max(partitions, 1))
	return (backlog + n - 1) / n
}

// checkShare is the share of the BacklogBytes of a sink, as a divisor, after whose size in new copies its queue is measured.
const checkShare = 8

// countCopy counts the copy of a notification to a sink's queue.
func (d *Dispatcher) countCopy(sink int, size int64) {
	d.sizes[sink] += size
	d.unchecked[sink] += size
}

// limitBytes drops the oldest entries of a sink whose queue needs more than its BacklogBytes, and counts them. It measures the queue
// only after many bytes were copied to it.
func (d *Dispatcher) limitBytes(ctx context.Context, sink int) error {
	limit := partitionShare(d.matcher.Sinks()[sink].BacklogBytes, d.opts.Partitions)
	if limit == 0 || d.unchecked[sink] < limit/checkShare {
		return nil
	}
	d.unchecked[sink] = 0
	n, err := d.opts.Queues.DropOldestBytes(ctx, d.sinks[sink], d.opts.Partition, limit)
	d.recordDropped(sink, n)
	return err
}

func (d *Dispatcher) recordDropped(sink int, n int64) {
	if n > 0 {
		d.dropped[sink] += n
		d.opts.Observer.Dropped(d.sinks[sink], n)
	}
}

// limitAllQueues drops what exceeds the backlogs of all sinks. A backlog may have become smaller, and a killed dispatcher may have
// enqueued too much.
func (d *Dispatcher) limitAllQueues(ctx context.Context) error {
	lengths, err := d.opts.Queues.Lengths(ctx, d.opts.Partition, d.sinks)
	if err != nil {
		return err
	}
	for i := range d.unchecked {
		d.unchecked[i] = unknownSize
	}
	return d.limitQueues(ctx, lengths)
}

// limitQueues drops the oldest entries of the sinks whose queues are larger than their backlogs, and counts them.
func (d *Dispatcher) limitQueues(ctx context.Context, lengths []int64) error {
	for i, n := range lengths {
		if err := d.limitBytes(ctx, i); err != nil {
			return err
		}
		if d.backlogs[i] == 0 || n <= d.backlogs[i] {
			continue
		}
		dropped, err := d.opts.Queues.DropOldest(ctx, d.sinks[i], d.opts.Partition, d.backlogs[i])
		d.recordDropped(i, dropped)
		if err != nil {
			return err
		}
	}
	return nil
}
