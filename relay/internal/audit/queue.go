package audit

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/hubrelay/hubrelay/internal/backoff"
)

const (
	// queueLen is the number of entries that wait to be written. More are dropped and counted.
	queueLen = 8192
	// batchLen is the maximum number of entries in one write.
	batchLen = 256
	// stopTimeout limits the last writes.
	stopTimeout = time.Second

	minRetry, maxRetry = 50 * time.Millisecond, 2 * time.Second
	dropLogInterval    = time.Minute
)

// queue contains the entries that wait for one output.
type queue struct {
	output  string
	entries chan *Entry
	dropped atomic.Int64
	dropLog rate.Sometimes
	log     *slog.Logger
}

func newQueue(output string, log *slog.Logger) *queue {
	return &queue{
		output: output, entries: make(chan *Entry, queueLen), log: log,
		dropLog: rate.Sometimes{Interval: dropLogInterval},
	}
}

// add returns false if the queue is full. Then e is dropped.
func (q *queue) add(e *Entry) bool {
	select {
	case q.entries <- e:
		return true
	default:
		n := q.dropped.Add(1)
		q.dropLog.Do(func() {
			q.log.Error("entries of the audit log were dropped", "output", q.output, "entry_count", n)
		})
		return false
	}
}

// fill appends waiting entries to batch, up to the length of a batch.
func (q *queue) fill(batch []*Entry) []*Entry {
	for len(batch) < batchLen {
		select {
		case e := <-q.entries:
			batch = append(batch, e)
		default:
			return batch
		}
	}
	return batch
}

// writeFunc writes entries to an output and returns the number that was written.
type writeFunc func(ctx context.Context, batch []*Entry) (int, error)

// run writes the entries of a queue until ctx ends, and then the waiting ones. It also ends summaries, so each
// output gets them while the other one does not respond.
func (l *Log) run(ctx context.Context, q *queue, write writeFunc) {
	tick := time.NewTicker(summaryTick)
	defer tick.Stop()
	var batch []*Entry
	for ctx.Err() == nil {
		select {
		case e := <-q.entries:
			batch = q.write(ctx, write, q.fill(append(batch, e)))
		case <-tick.C:
			l.endSummaries(false)
		case <-ctx.Done():
		}
	}
	l.endSummaries(true)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	for batch = q.fill(batch); len(batch) > 0; batch = q.fill(batch) {
		if batch = q.write(last, write, batch); len(batch) > 0 {
			q.log.Error("entries of the audit log were not written before the end", "output", q.output,
				"entry_count", len(batch)+len(q.entries))
			return
		}
	}
}

// write writes a batch and retries until ctx ends. It returns the entries that were not written.
func (q *queue) write(ctx context.Context, write writeFunc, batch []*Entry) []*Entry {
	for retry := (backoff.Backoff{Min: minRetry, Max: maxRetry}); ; {
		n, err := write(ctx, batch)
		if batch = batch[n:]; err == nil {
			return nil
		}
		if retry.IsReset() && ctx.Err() == nil {
			q.log.Error("audit log could not be written, retrying", "output", q.output, "error", err)
		}
		if !retry.Sleep(ctx) {
			return batch
		}
	}
}

// storeWriter writes entries to an [Appender].
type storeWriter struct{ store Appender }

func (w storeWriter) write(ctx context.Context, batch []*Entry) (int, error) {
	lines := make([][]byte, len(batch))
	for i, e := range batch {
		var err error
		if lines[i], err = encodeJSON(e); err != nil {
			return 0, err // impossible: strings, a number and a time
		}
	}
	if err := w.store.Append(ctx, lines); err != nil {
		return 0, err
	}
	return len(batch), nil
}
