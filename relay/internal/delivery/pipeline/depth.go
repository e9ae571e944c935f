package pipeline

import (
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/internal/logsample"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/admission"
)

// depthTracker knows how many deliveries of a sink are scheduled on all nodes together. Fresh deliveries are not
// attempted while there are as many as the backlog allows: if they failed, the retry queue would have no place for
// them, and they can wait in their own queue as well. Deliveries in progress may exceed the limit.
type depthTracker struct {
	opts      *Options
	admission *admission.Admission
	stats     *statsBuffer
	fullLog   *logsample.Limiter

	droppedLog *logsample.Limiter
	dropped    atomic.Int64 // dead letters that are not logged yet
}

func newDepthTracker(o *Options, a *admission.Admission, stats *statsBuffer) *depthTracker {
	return &depthTracker{
		opts: o, admission: a, stats: stats,
		fullLog: logsample.New(1, warnInterval, o.Now), droppedLog: logsample.New(1, warnInterval, o.Now),
	}
}

// set takes over the number of scheduled deliveries from Redis, and adds the size of one that was scheduled. It reports whether the
// retry queue became full.
func (t *depthTracker) set(depth int64, addedBytes int) (becameFull bool) {
	if !t.admission.SetDepth(depth, int64(addedBytes)) {
		return false
	}
	if t.opts.Backlog > 0 && depth >= t.opts.Backlog {
		t.reportFull()
	} else {
		t.opts.Wake(measureDelay) // the sum of sizes is too high if some have been delivered
	}
	return true
}

// setBytes takes over the memory of the scheduled deliveries from Redis. What was scheduled after the measurement counts in the next
// one.
func (t *depthTracker) setBytes(bytes int64) {
	t.admission.SetBytes(bytes)
	if bytes >= t.opts.maxScheduledBytes() {
		t.reportFull()
	}
}

func (t *depthTracker) reportFull() {
	if _, ok := t.fullLog.Allow(); ok {
		t.opts.Log.Error("scheduled retries have reached backlog or backlog_bytes, so new deliveries wait in the queue of the sink, "+
			"which drops the oldest events when it is full; fix the destination, raise the limit, or remove the sink",
			"scheduled_retries", t.admission.Depth(), "backlog", t.opts.Backlog,
			"scheduled_bytes", t.admission.Bytes(), "backlog_bytes", t.opts.BacklogBytes)
	}
}

// measureDelay is the minimum time between measurements of the memory of the scheduled deliveries, and the time after which it is
// measured because the retry queue became full, or a delivery left a full one.
const measureDelay = time.Second

// removeOne counts a removed delivery, until the next set.
func (t *depthTracker) removeOne() {
	t.admission.RemoveScheduled()
	if t.opts.maxScheduledBytes() > 0 && t.admission.IsFull() {
		t.opts.Wake(measureDelay)
	}
}

// reportDropped reports dead letters that were dropped because there were too many. The reason names the limit.
func (t *depthTracker) reportDropped(n int64, reason string) {
	if n == 0 {
		return
	}
	t.opts.Observer.Dropped(t.opts.Name, n)
	t.stats.addDropped(n)
	t.dropped.Add(n)
	if _, ok := t.droppedLog.Allow(); ok {
		t.opts.Log.Error("oldest dead letters of the sink were dropped; replay or drop dead letters, or raise the limit",
			"reason", reason, "dropped_count", t.dropped.Swap(0), "backlog", t.opts.Backlog)
	}
}
