package dispatch

import (
	"context"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/backbone"
)

// live dispatches an offered batch together with those that wait behind it. Where it does not follow the position,
// the log is read instead.
func (d *Dispatcher) live(ctx context.Context, b backbone.Batch) (again bool, err error) {
	if b.Gap {
		return true, nil // the log may have been set back, and the stored position with it
	}
	if backbone.CompareCursors(b.Last, d.reached) <= 0 {
		return false, nil
	}
	if b.Prev != d.reached {
		return d.catchUp(ctx)
	}
	list, last := b.Notifications, b.Last
	for len(list) < mergeMost {
		select {
		case next := <-d.batches:
			if next.Gap || next.Prev != last {
				// Something lies between: what we have first, then the log itself.
				if again, err := d.dispatch(ctx, list); again || err != nil || next.Gap {
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
	return d.dispatch(ctx, list)
}

// catchUp reads the log until its end.
func (d *Dispatcher) catchUp(ctx context.Context) (again bool, err error) {
	for {
		list, err := d.o.Log.Range(ctx, d.o.Partition, d.reached, rangeCount)
		if err != nil || len(list) == 0 {
			return false, err
		}
		if again, err := d.dispatch(ctx, list); again || err != nil {
			return again, err
		}
		if len(list) < rangeCount {
			return false, nil
		}
	}
}

// dispatch enqueues what follows the position, in as many steps as its matches need. It reports true where the state
// has to be read again.
func (d *Dispatcher) dispatch(ctx context.Context, list []relay.Notification) (again bool, err error) {
	for len(list) > 0 {
		e := backbone.Enqueue{
			Partition: d.o.Partition, From: d.position, Generation: d.generation, Sinks: d.sinks, Backlogs: d.backlogs,
		}
		d.scratch = d.scratch[:0]
		n := 0
		for ; n < len(list) && len(d.scratch) < pairsMost; n++ {
			before := len(d.scratch)
			d.scratch = d.matcher.Match(&list[n], d.scratch)
			if !d.plain {
				d.scratch = d.wanted(d.scratch, before, list[n].Cursor)
			}
			if found := d.scratch[before:]; len(found) > 0 {
				e.Matches = append(e.Matches, backbone.Match{ID: list[n].Cursor, Sinks: found})
			}
		}
		e.To, e.Covered = list[n-1].Cursor, d.passed+n
		list = list[n:]
		if len(e.Matches) == 0 && d.plain && e.Covered < passMost {
			d.reached, d.passed = e.To, e.Covered
			continue
		}
		result, err := d.o.Log.Enqueue(ctx, e)
		if err != nil || !result.Committed {
			return true, err
		}
		d.count(e, result)
		d.advance(e.To)
	}
	return false, nil
}

// settle stores the position behind entries that nobody wanted. It reports true where the state has to be read again.
func (d *Dispatcher) settle(ctx context.Context) (again bool, err error) {
	if d.passed == 0 {
		return false, nil
	}
	result, err := d.o.Log.Enqueue(ctx, backbone.Enqueue{
		Partition: d.o.Partition, From: d.position, To: d.reached, Covered: d.passed, Generation: d.generation,
		Sinks: d.sinks, Backlogs: d.backlogs,
	})
	if err != nil || !result.Committed {
		return true, err
	}
	d.advance(d.reached)
	return false, nil
}

// wanted leaves out the sinks whose entries begin behind the cursor, or that are served by catching up.
func (d *Dispatcher) wanted(found []int, from int, cursor string) []int {
	kept := found[:from]
	for _, i := range found[from:] {
		if d.joined[i] != "" && backbone.CompareCursors(cursor, d.joined[i]) > 0 {
			kept = append(kept, i)
		}
	}
	return kept
}

func (d *Dispatcher) advance(to string) {
	d.position, d.reached, d.passed = to, to, 0
	if d.plain || len(d.behind) > 0 {
		return
	}
	for _, at := range d.joined {
		if at == "" || backbone.CompareCursors(at, to) > 0 {
			return
		}
	}
	d.plain = true
}

// count tells the observer what an enqueue brought about, and keeps what was dropped for the next report.
func (d *Dispatcher) count(e backbone.Enqueue, r backbone.EnqueueResult) {
	for _, m := range e.Matches {
		for _, i := range m.Sinks {
			d.copied[i]++
		}
	}
	for _, m := range e.Matches {
		for _, i := range m.Sinks {
			if n := d.copied[i]; n > 0 {
				d.o.Observer.Enqueued(e.Sinks[i], n)
				d.copied[i] = 0
			}
		}
	}
	for i, n := range r.Dropped {
		if n > 0 {
			d.dropped[i] += n
			d.o.Observer.Dropped(e.Sinks[i], n)
		}
	}
	if r.Missing > 0 {
		d.o.Observer.Missing(d.o.Partition, r.Missing)
		d.o.Logger.Error("entries left the log before they were enqueued", "partition", d.o.Partition, "missing", r.Missing)
	}
}

// catchingUp is ready while a sink has to catch up.
func (d *Dispatcher) catchingUp() <-chan struct{} {
	if len(d.behind) == 0 {
		return nil
	}
	ready := make(chan struct{})
	close(ready)
	return ready
}

// backfill takes one step with one sink that is behind the dispatcher. When the sink has caught up the state has to be
// read again.
func (d *Dispatcher) backfill(ctx context.Context) (again bool, err error) {
	var sink int
	var at string
	for sink, at = range d.behind {
		break
	}
	list, err := d.o.Log.Range(ctx, d.o.Partition, at, rangeCount)
	if err != nil {
		return false, err
	}
	e := backbone.Enqueue{
		Partition: d.o.Partition, Cursor: d.sinks[sink], From: at, To: d.position, Generation: d.generation,
		Sinks: d.sinks, Backlogs: d.backlogs,
	}
	filter := &d.matcher.Sinks()[sink].Filter
	only := []int{sink}
	for i := range list {
		if filter.Match(list[i]) {
			e.Matches = append(e.Matches, backbone.Match{ID: list[i].Cursor, Sinks: only})
		}
	}
	if n := len(list); n > 0 && (n == rangeCount || backbone.CompareCursors(list[n-1].Cursor, e.To) > 0) {
		e.To = list[n-1].Cursor
	}
	e.Covered = len(list)
	result, err := d.o.Log.Enqueue(ctx, e)
	if err != nil || !result.Committed {
		return true, err
	}
	d.count(e, result)
	if result.Joined {
		d.o.Logger.Info("a sink has caught up with the log", "sink", d.sinks[sink], "partition", d.o.Partition)
		return true, nil
	}
	d.behind[sink] = e.To
	return false, nil
}
