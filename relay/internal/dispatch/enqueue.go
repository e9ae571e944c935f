package dispatch

import (
	"context"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
)

// dispatchLive dispatches an offered batch together with those that wait behind it. Where it does not follow the position,
// the log is read instead.
func (d *Dispatcher) dispatchLive(ctx context.Context, b eventlog.Batch) (again bool, err error) {
	if b.Gap {
		return true, nil // the log may have been set back, and the stored position with it
	}
	if streamid.Compare(b.Last, d.matchedTo) <= 0 {
		return false, nil
	}
	if b.Prev != d.matchedTo {
		return d.catchUp(ctx)
	}
	list, last := b.Notifications, b.Last
	for len(list) < maxMergedBatch {
		select {
		case next := <-d.batches:
			if next.Gap || next.Prev != last {
				// Something lies between: what we have first, then the log itself.
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

// catchUp reads the log until its end.
func (d *Dispatcher) catchUp(ctx context.Context) (again bool, err error) {
	for {
		list, err := d.opts.Log.Range(ctx, d.opts.Partition, d.matchedTo, rangeCount)
		if err != nil || len(list) == 0 {
			return false, err
		}
		if again, err := d.enqueueMatches(ctx, list); again || err != nil {
			return again, err
		}
		if len(list) < rangeCount {
			return false, nil
		}
	}
}

// enqueueMatches enqueues what follows the position, in as many steps as its matches need. It reports true where the state
// has to be read again.
func (d *Dispatcher) enqueueMatches(ctx context.Context, list []relay.Notification) (again bool, err error) {
	for len(list) > 0 {
		e := queue.EnqueueRequest{
			Partition: d.opts.Partition, From: d.position, Generation: d.generation, Sinks: d.sinks, MaxBacklogs: d.backlogs,
		}
		d.scratch = d.scratch[:0]
		n := 0
		for ; n < len(list) && len(d.scratch) < maxCopiesPerScript; n++ {
			before := len(d.scratch)
			d.scratch = d.matcher.Match(&list[n], d.scratch)
			if !d.allJoined {
				d.scratch = d.filterJoined(d.scratch, before, list[n].Cursor)
			}
			if found := d.scratch[before:]; len(found) > 0 {
				e.Matches = append(e.Matches, queue.SinkMatch{ID: list[n].Cursor, Sinks: found})
			}
		}
		e.To, e.EntriesCovered = list[n-1].Cursor, d.unmatched+n
		list = list[n:]
		if len(e.Matches) == 0 && d.allJoined && e.EntriesCovered < positionSaveEntries {
			d.matchedTo, d.unmatched = e.To, e.EntriesCovered
			continue
		}
		result, err := d.opts.Queues.Enqueue(ctx, e)
		if err != nil || !result.Committed {
			return true, err
		}
		d.recordResult(e, result)
		d.setPosition(e.To)
	}
	return false, nil
}

// savePosition stores the position behind entries that nobody wanted. It reports true where the state has to be read again.
func (d *Dispatcher) savePosition(ctx context.Context) (again bool, err error) {
	if d.unmatched == 0 {
		return false, nil
	}
	result, err := d.opts.Queues.Enqueue(ctx, queue.EnqueueRequest{
		Partition: d.opts.Partition, From: d.position, To: d.matchedTo, EntriesCovered: d.unmatched, Generation: d.generation,
		Sinks: d.sinks, MaxBacklogs: d.backlogs,
	})
	if err != nil || !result.Committed {
		return true, err
	}
	d.setPosition(d.matchedTo)
	return false, nil
}

// filterJoined leaves out the sinks whose entries begin behind the cursor, or that are served by catching up.
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
	d.position, d.matchedTo, d.unmatched = to, to, 0
	if d.allJoined || len(d.catchingUpSinks) > 0 {
		return
	}
	for _, at := range d.joinedAt {
		if at == "" || streamid.Compare(at, to) > 0 {
			return
		}
	}
	d.allJoined = true
}

// recordResult tells the observer what an enqueue brought about, and keeps what was dropped for the next report.
func (d *Dispatcher) recordResult(e queue.EnqueueRequest, r queue.EnqueueResult) {
	for _, m := range e.Matches {
		for _, i := range m.Sinks {
			d.copied[i]++
		}
	}
	for _, m := range e.Matches {
		for _, i := range m.Sinks {
			if n := d.copied[i]; n > 0 {
				d.opts.Observer.Enqueued(e.Sinks[i], n)
				d.copied[i] = 0
			}
		}
	}
	for i, n := range r.Dropped {
		if n > 0 {
			d.dropped[i] += n
			d.opts.Observer.Dropped(e.Sinks[i], n)
		}
	}
	if r.Trimmed > 0 {
		d.opts.Observer.TrimmedBeforeEnqueue(d.opts.Partition, r.Trimmed)
		d.opts.Logger.Error("entries left the log before they were enqueued", "partition", d.opts.Partition, "missing", r.Trimmed)
	}
}

// catchUpSignal is ready while a sink has to catch up.
func (d *Dispatcher) catchUpSignal() <-chan struct{} {
	if len(d.catchingUpSinks) == 0 {
		return nil
	}
	ready := make(chan struct{})
	close(ready)
	return ready
}

// catchUpSink takes one step with one sink that is behind the dispatcher. When the sink has caught up the state has to be
// read again.
func (d *Dispatcher) catchUpSink(ctx context.Context) (again bool, err error) {
	var sink int
	var at string
	for sink, at = range d.catchingUpSinks {
		break
	}
	list, err := d.opts.Log.Range(ctx, d.opts.Partition, at, rangeCount)
	if err != nil {
		return false, err
	}
	e := queue.EnqueueRequest{
		Partition: d.opts.Partition, CatchUpSink: d.sinks[sink], From: at, To: d.position, Generation: d.generation,
		Sinks: d.sinks, MaxBacklogs: d.backlogs,
	}
	filter := &d.matcher.Sinks()[sink].Filter
	only := []int{sink}
	for i := range list {
		if filter.Match(list[i]) {
			e.Matches = append(e.Matches, queue.SinkMatch{ID: list[i].Cursor, Sinks: only})
		}
	}
	if n := len(list); n > 0 && (n == rangeCount || streamid.Compare(list[n-1].Cursor, e.To) > 0) {
		e.To = list[n-1].Cursor
	}
	e.EntriesCovered = len(list)
	result, err := d.opts.Queues.Enqueue(ctx, e)
	if err != nil || !result.Committed {
		return true, err
	}
	d.recordResult(e, result)
	if result.CaughtUp {
		d.opts.Logger.Info("a sink has caught up with the log", "sink", d.sinks[sink], "partition", d.opts.Partition)
		return true, nil
	}
	d.catchingUpSinks[sink] = e.To
	return false, nil
}
