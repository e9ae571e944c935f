package dispatch

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/internal/backoff"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
)

const (
	// offerBuffer is how many live batches may wait; a dispatcher that is further behind reads for itself.
	offerBuffer = 16
	// rangeCount is how many entries are read at once when catching up.
	rangeCount = 512
	// maxMergedBatch bounds how many waiting notifications are enqueued in one go.
	maxMergedBatch = 1024
	// positionSaveInterval is how long the stored position may stay behind entries that no sink wants, and passMost how many of them:
	// without sinks, or while nothing matches, Redis is not asked for every read.
	positionSaveInterval = 250 * time.Millisecond
	positionSaveEntries  = 4096
	// maxCopiesPerScript bounds the copies that one script makes, since Redis does nothing else meanwhile.
	maxCopiesPerScript = 4096
	// maintainEvery is the pause between trims, with jitter; then dropped entries are reported too, and the state is read
	// again and the log looked at, in case the node's reader of the log hangs or Redis was set back unnoticed.
	maintainEvery = 5 * time.Second
	retryMin      = 100 * time.Millisecond
	retryMax      = 5 * time.Second
)

// Queues are the queues of the sinks and their positions. See [queue.Store].
type Queues interface {
	RegisterSinks(ctx context.Context, partition int, fromStart map[string]bool) (queue.DispatchState, error)
	Enqueue(ctx context.Context, r queue.EnqueueRequest) (queue.EnqueueResult, error)
}

var _ Queues = (*queue.Store)(nil)

// Log is the log that a dispatcher reads. See [eventlog.Log].
type Log interface {
	Range(ctx context.Context, partition int, after string, count int) ([]relay.Notification, error)
	HasRangeAfter(ctx context.Context, partition int, after string) (bool, error)
	Trim(ctx context.Context, partition int, history time.Duration, maxLen int64) error
}

// Lease is held by at most one dispatcher of a partition, to save work; it is safe without.
type Lease interface {
	Run(ctx context.Context, fn func(context.Context) error) error
}

// Observer is told what happens, for metrics. Its methods may be called concurrently and must not block.
type Observer interface {
	// Enqueued counts what was copied into a sink's queue.
	Enqueued(sink string, n int)
	// Dropped counts the oldest entries of a sink's backlog that had to go.
	Dropped(sink string, n int64)
	// TrimmedBeforeEnqueue counts matched entries that had left the log before they were enqueued.
	TrimmedBeforeEnqueue(partition, n int)
}

type noopObserver struct{}

func (noopObserver) Enqueued(string, int)          {}
func (noopObserver) Dropped(string, int64)         {}
func (noopObserver) TrimmedBeforeEnqueue(int, int) {}

// Options describe the dispatcher of one partition.
type Options struct {
	Partition int
	// Partitions is the number of all partitions, over which backlogs are divided.
	Partitions int
	Matcher    *Matcher
	Log        Log
	Queues     Queues
	// Lease is the lease `dispatch:<partition>`.
	Lease Lease
	// History and MaxLen bound the log behind the dispatcher; zero lifts a bound.
	History time.Duration
	MaxLen  int64

	// Logger and Observer may be nil.
	Logger   *slog.Logger
	Observer Observer
}

// Dispatcher matches the notifications of one partition and enqueues them. Only [Dispatcher.Offer] and
// [Dispatcher.Reload] may be called beside Run.
type Dispatcher struct {
	opts        Options
	batches     chan eventlog.Batch
	leading     atomic.Bool
	missedOffer atomic.Bool
	nextMatcher atomic.Pointer[Matcher] // the sinks to go on with, nil for those it has
	reloaded    chan struct{}           // holds one where next was set

	// What follows belongs to lead.
	matcher         *Matcher
	sinks           []string
	backlogs        []int64
	fromStart       map[string]bool
	position        string // as it is stored
	matchedTo       string // up to here nothing behind position is wanted
	unmatched       int    // how many entries that is
	generation      int64
	joinedAt        []string       // by sink: its entries begin behind this; empty for one that is not served
	allJoined       bool           // every sink is served and has joined before the position
	catchingUpSinks map[int]string // sinks that catch up, by place, with their position
	dropped         []int64        // not yet reported
	copied          []int          // of the running enqueue
	scratch         []int
}

// NewDispatcher returns a dispatcher that does nothing before Run.
func NewDispatcher(o Options) (*Dispatcher, error) {
	if o.Matcher == nil || o.Log == nil || o.Queues == nil || o.Lease == nil {
		return nil, errors.New("a dispatcher needs a matcher, a log and a lease")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Observer == nil {
		o.Observer = noopObserver{}
	}
	d := &Dispatcher{opts: o, batches: make(chan eventlog.Batch, offerBuffer), reloaded: make(chan struct{}, 1)}
	d.useMatcher(o.Matcher)
	return d, nil
}

// Reload has the dispatcher go on with the sinks of another matcher, in a moment. A sink that is not among them any more
// keeps its place in the log, for the day it comes back.
func (d *Dispatcher) Reload(m *Matcher) {
	d.nextMatcher.Store(m)
	select {
	case d.reloaded <- struct{}{}:
	default:
	}
}

func (d *Dispatcher) useMatcher(m *Matcher) {
	list := m.Sinks()
	d.matcher, d.sinks, d.backlogs, d.fromStart = m, nil, nil, make(map[string]bool, len(list))
	d.dropped, d.copied = make([]int64, len(list)), make([]int, len(list))
	for _, s := range list {
		d.sinks = append(d.sinks, s.Name)
		d.backlogs = append(d.backlogs, partitionShare(s.Backlog, d.opts.Partitions))
		d.fromStart[s.Name] = s.FromStart
	}
}

// partitionShare is a partition's part of a backlog, rounded up.
func partitionShare(backlog int64, partitions int) int64 {
	n := int64(max(partitions, 1))
	return (backlog + n - 1) / n
}

// Offer hands over what the node has just read from the log. It never blocks: a dispatcher that does not keep up, or
// does not hold the lease, reads the log for itself.
func (d *Dispatcher) Offer(b eventlog.Batch) {
	if !d.leading.Load() {
		return
	}
	select {
	case d.batches <- b:
	default:
		d.missedOffer.Store(true)
	}
}

// Run dispatches whenever it holds the lease, until ctx ends; then it returns nil.
func (d *Dispatcher) Run(ctx context.Context) error {
	err := d.opts.Lease.Run(ctx, d.runAsLeader)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// runAsLeader dispatches until ctx ends. While Redis is away it waits and begins anew.
func (d *Dispatcher) runAsLeader(ctx context.Context) error {
	// Offers count from here on; what was written before is found by reading.
	d.leading.Store(true)
	defer func() {
		d.leading.Store(false)
		for len(d.batches) > 0 {
			<-d.batches
		}
		d.logDropped()
	}()
	retry := backoff.Backoff{Min: retryMin, Max: retryMax}
	for ctx.Err() == nil {
		began := time.Now()
		err := d.dispatchLoop(ctx)
		if err == nil || time.Since(began) > retryMax {
			retry.Reset()
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		d.opts.Logger.Warn("cannot dispatch, will go on from the stored position", "partition", d.opts.Partition, "error", err)
		if !retry.Sleep(ctx) {
			break
		}
	}
	return nil
}

// dispatchLoop reads the state from Redis and dispatches until something fails (its error) or has to be read again (nil).
func (d *Dispatcher) dispatchLoop(ctx context.Context) error {
	if err := d.loadState(ctx); err != nil {
		return err
	}
	if again, err := d.catchUp(ctx); again || err != nil {
		return err
	}
	maintain := time.NewTimer(backoff.Jitter(maintainEvery))
	defer maintain.Stop()
	settle := time.NewTimer(positionSaveInterval)
	settle.Stop()
	defer settle.Stop()
	settling := false
	for {
		if d.unmatched > 0 && !settling {
			settle.Reset(positionSaveInterval)
		}
		settling = d.unmatched > 0
		again, err := false, error(nil)
		select {
		case <-ctx.Done():
			return nil
		case b := <-d.batches:
			again, err = d.dispatchLive(ctx, b)
		case <-d.reloaded: // what the sinks so far passed over is nothing for those that come
			_, err = d.savePosition(ctx)
			again = true
		case <-settle.C:
			settling = false
			again, err = d.savePosition(ctx)
		case <-maintain.C:
			again, err = true, d.runMaintenance(ctx)
		case <-d.catchUpSignal():
			again, err = d.catchUpSink(ctx)
		}
		if again || err != nil {
			return err
		}
		if len(d.batches) == 0 && d.missedOffer.Swap(false) {
			if again, err := d.catchUp(ctx); again || err != nil {
				return err
			}
		}
	}
}

func (d *Dispatcher) loadState(ctx context.Context) error {
	if m := d.nextMatcher.Swap(nil); m != nil {
		d.logDropped()
		d.useMatcher(m)
	}
	s, err := d.opts.Queues.RegisterSinks(ctx, d.opts.Partition, d.fromStart)
	if err != nil {
		return err
	}
	d.position, d.matchedTo, d.unmatched, d.generation = s.Position, s.Position, 0, s.Generation
	d.joinedAt, d.catchingUpSinks, d.allJoined = make([]string, len(d.sinks)), make(map[int]string), true
	for i, name := range d.sinks {
		if at, ok := s.Active[name]; ok {
			d.joinedAt[i] = at
			d.allJoined = d.allJoined && streamid.Compare(at, d.position) <= 0
			continue
		}
		d.allJoined = false
		if at, ok := s.CatchingUp[name]; ok {
			d.catchingUpSinks[i] = at
			if err := d.logTrimmedSince(ctx, name, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// logTrimmedSince says so where a sink that comes back begins before what is left of the log.
func (d *Dispatcher) logTrimmedSince(ctx context.Context, sink, at string) error {
	whole, err := d.opts.Log.HasRangeAfter(ctx, d.opts.Partition, at)
	if err == nil && !whole {
		d.opts.Logger.Error("a sink was away for longer than the log reaches back; what it wanted of the entries that left the log before is lost to it",
			"sink", sink, "partition", d.opts.Partition, "after", at)
	}
	return err
}

// runMaintenance does what is not urgent.
func (d *Dispatcher) runMaintenance(ctx context.Context) error {
	d.logDropped()
	if _, err := d.savePosition(ctx); err != nil {
		return err
	}
	return d.opts.Log.Trim(ctx, d.opts.Partition, d.opts.History, d.opts.MaxLen)
}

// logDropped says what was dropped since the last time.
func (d *Dispatcher) logDropped() {
	for i, n := range d.dropped {
		if n > 0 {
			d.opts.Logger.Error("the backlog of a sink is full, its oldest notifications were dropped",
				"sink", d.sinks[i], "partition", d.opts.Partition, "dropped", n, "limit", d.backlogs[i])
			d.dropped[i] = 0
		}
	}
}
