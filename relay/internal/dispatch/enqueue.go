package dispatch

import (
	"context"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
)

// dispatchLive dispatches an offered batch together with the batches that wait. If the batch does not follow the
// position, it reads the log instead.
func (d *Dispatcher) dispatchLive(ctx context.Context, b eventlog.Batch) (again bool, err error) {
	if b.Gap {
		return true, nil // the log may have lost entries, and the stored position may be older
	}
	if streamid.Compare(b.Last, d.unmatchedTo) <= 0 {
		return false, nil
	}
	if b.Prev != d.unmatchedTo {
		return d.catchUp(ctx)
	}
	list, last := b.Notifications, b.Last
	for len(list) < maxMergedBatch {
		select {
		case next := <-d.batches:
			if next.Gap || next.Prev != last {
				// Entries are missing in between: enqueue the merged batches first, then read the log.
				if again, err := d.enqueueMatches(ctx, list); again || err != nil || next.Gap {
					return true, err
				}
				return d.catchUp(ctx)
			}
			list, last = append(list[:len(list):len(list)], next.Notifications...), next.Last
			continue
		default:
		}
		break
	}
	return d.enqueueMatches(ctx, list)
}

// catchUp dispatches from the log until its end.
func (d *Dispatcher) catchUp(ctx context.Context) (again bool, err error) {
	for {
		list, isEnd, err := d.readLog(ctx, d.unmatchedTo)
		d.opts.RecordLag(err == nil && !isEnd) // after an error, publishing to other partitions continues
		if err != nil || len(list) == 0 {
			return false, err
		}
		if again, err := d.enqueueMatches(ctx, list); again || err != nil {
			return again, err
		}
		if isEnd { // what follows arrives as an offer; another read could find new entries again and again
			return false, nil
		}
	}
}

// readLog reads some notifications after a position. isEnd is true if the log had no more.
func (d *Dispatcher) readLog(ctx context.Context, after string) (list []relay.Notification, isEnd bool, err error) {
	count := d.readSize.NextCount(maxRangeCount)
	list, err = d.opts.Log.Range(ctx, d.opts.Partition, after, count)
	if err != nil {
		return nil, false, err
	}
	largest, size := 0, 0
	for i := range list {
		largest = max(largest, len(list[i].Data))
		size += len(list[i].Data)
	}
	d.readSize.Record(largest)
	return list, len(list) < count && size < minTruncatedBytes, nil
}

// enqueueMatches matches and enqueues the notifications after the position, in several steps if there are many
// matches. It returns true if the state must be read again.
func (d *Dispatcher) enqueueMatches(ctx context.Context, list []relay.Notification) (again bool, err error) {
	for len(list) > 0 {
		if again, err := d.trimEarly(ctx); again || err != nil {
			return true, err
		}
		if again, err := d.detachFull(ctx); again || err != nil {
			return true, err
		}
		r := d.newRequest(d.position)
		d.scratch = d.scratch[:0]
		n, added, copied := 0, 0, 0 // entries, bytes
		for ; n < len(list) && len(d.scratch) < maxCopiesPerScript && copied < maxBytesPerScript && !d.mustCountNow; n++ {
			before := len(d.scratch)
			added += len(list[n].Data)
			d.scratch = d.matcher.Match(&list[n], d.scratch)
			if !d.allJoined {
				d.scratch = d.filterJoined(d.scratch, before, list[n].Cursor)
			}
			d.scratch = d.admitMatches(&list[n], d.scratch, before)
			if found := d.scratch[before:]; len(found) > 0 {
				r.Matches = append(r.Matches, queue.SinkMatch{ID: list[n].Cursor, Sinks: found})
				copied += len(found) * len(list[n].Data)
				for _, i := range found {
					d.countCopy(i, sizeOf(&list[n]))
				}
			}
		}
		d.bytesSinceTrim += int64(added)
		d.addBytes(ctx, added+copied)
		r.To, r.EntriesCovered = list[n-1].Cursor, d.unmatched+n
		list = list[n:]
		if len(r.Matches) == 0 && d.allJoined && r.EntriesCovered < positionSaveEntries {
			d.unmatchedTo, d.unmatched = r.To, r.EntriesCovered
			continue
		}
		result, err := d.opts.Queues.Enqueue(ctx, r)
		if err != nil || !result.Committed {
			return true, err
		}
		d.recordResult(r, result)
		d.recordExcluded()
		d.setPosition(r.To)
		if err := d.limitQueues(ctx, result.Lengths); err != nil {
			return true, err
		}
		if d.mustCount {
			if err := d.countAccounts(ctx); err != nil {
				return true, err
			}
		}
	}
	return false, nil
}

// newRequest returns a request without matches.
func (d *Dispatcher) newRequest(from string) queue.EnqueueRequest {
	_, isFull := d.opts.Memory.QueueLimit()
	return queue.EnqueueRequest{
		Partition: d.opts.Partition, From: from, Generation: d.generation, Sinks: d.sinks, IgnoresMemoryLimit: isFull,
	}
}

// savePosition stores the position after entries that no sink matched. It returns true if the state must be read again.
func (d *Dispatcher) savePosition(ctx context.Context) (again bool, err error) {
	if d.unmatched == 0 {
		return false, nil
	}
	r := d.newRequest(d.position)
	r.To, r.EntriesCovered = d.unmatchedTo, d.unmatched
	result, err := d.opts.Queues.Enqueue(ctx, r)
	if err != nil || !result.Committed {
		return true, err
	}
	d.recordExcluded()
	d.setPosition(d.unmatchedTo)
	return false, nil
}

// filterJoined removes the sinks whose entries begin after the cursor, and the sinks that catch up.
func (d *Dispatcher) filterJoined(found []int, from int, cursor string) []int {
	kept := found[:from]
	for _, i := range found[from:] {
		if d.joinedAt[i] != "" && streamid.Compare(cursor, d.joinedAt[i]) > 0 {
			kept = append(kept, i)
		}
	}
	return kept
}

func (d *Dispatcher) setPosition(to string) {
	d.position, d.unmatchedTo, d.unmatched = to, to, 0
	if d.allJoined || len(d.catchUps) > 0 {
		return
	}
	for _, at := range d.joinedAt {
		if at == "" || streamid.Compare(at, to) > 0 {
			return
		}
	}
	d.allJoined = true
}

// recordResult reports the result of an enqueue to the observer.
func (d *Dispatcher) recordResult(r queue.EnqueueRequest, result queue.EnqueueResult) {
	for _, m := range r.Matches {
		for _, i := range m.Sinks {
			d.copied[i]++
		}
	}
	for _, m := range r.Matches {
		for _, i := range m.Sinks {
			if n := d.copied[i]; n > 0 {
				d.opts.Observer.Enqueued(r.Sinks[i], n)
				d.copied[i] = 0
			}
		}
	}
	if result.Trimmed > 0 {
		d.opts.Observer.TrimmedBeforeEnqueue(d.opts.Partition, result.Trimmed)
		d.opts.Logger.Error("log entries were trimmed before they were enqueued",
			"partition", d.opts.Partition, "entry_count", result.Trimmed)
	}
}
