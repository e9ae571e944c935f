package dispatch

import (
	"context"
	"time"

	"github.com/hubrelay/hubrelay/internal/backoff"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
)

// logTrimmedSince logs an error if the log no longer has all entries that a sink has to catch up with.
func (d *Dispatcher) logTrimmedSince(ctx context.Context, sink, position string) error {
	complete, err := d.opts.Log.HasRangeAfter(ctx, d.opts.Partition, position)
	if err == nil && !complete {
		d.opts.Logger.ErrorContext(ctx, "the log no longer has all entries for a sink: they are lost, or were of an erased account",
			"sink", sink, "partition", d.opts.Partition, "position", position)
	}
	return err
}

// trimEarly trims the log if an eighth of its maximum size was dispatched since the last time. A burst could fill Redis
// otherwise. It returns true if the state must be read again.
func (d *Dispatcher) trimEarly(ctx context.Context) (again bool, err error) {
	if d.bytesSinceTrim < minTrimBytes {
		return false, nil
	}
	retention := d.opts.Retention()
	if retention.MaxBytes == 0 || d.bytesSinceTrim < retention.MaxBytes/8 {
		return false, nil
	}
	d.bytesSinceTrim = 0
	if again, err := d.savePosition(ctx); again || err != nil {
		return again, err
	}
	return false, d.trimLog(ctx, retention)
}

// trimLog trims the log, but keeps what sinks that catch up still have to get.
func (d *Dispatcher) trimLog(ctx context.Context, retention eventlog.Retention) error {
	retention.KeepAfter, retention.Generation = d.keepAfter(), d.generation
	return d.opts.Log.Trim(ctx, d.opts.Partition, retention)
}

// runMaintenance logs dropped entries, saves the position and trims the log.
func (d *Dispatcher) runMaintenance(ctx context.Context) error {
	d.maintainAt, d.bytesSinceTrim = time.Now().Add(backoff.Jitter(maintainInterval)), 0
	d.logDropped()
	d.logFull()
	if again, err := d.savePosition(ctx); again || err != nil {
		return err
	}
	return d.trimLog(ctx, d.opts.Retention())
}

// logDropped logs the number of entries that were dropped since the last call.
func (d *Dispatcher) logDropped() {
	d.logExceeded()
	for i, n := range d.dropped {
		if n > 0 {
			d.opts.Logger.Error("the queue of a sink was full, its oldest events were dropped",
				"sink", d.sinks[i], "partition", d.opts.Partition, "dropped_count", n, "backlog", d.backlogs[i],
				"backlog_bytes", d.matcher.Sinks()[i].BacklogBytes)
			d.dropped[i] = 0
		}
	}
}
