// Package dispatch copies log entries to the queues of the sinks that match them. Each partition has one [Dispatcher],
// which matches every notification once against all sinks.
//
// Delivery from the queues belongs to packages queue and delivery. Sink types, configuration and Redis commands do not
// belong here.
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
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

const (
	// offerBuffer is the number of live batches that may wait. A slower dispatcher reads the log
	// itself.
	offerBuffer = 16
	// maxRangeCount is the maximum number of entries of one read while catching up.
	maxRangeCount = 512
	// minTruncatedBytes is the size below which a read that has fewer entries has reached the end of the log.
	minTruncatedBytes = 4 << 20
	// maxMergedBatch is the maximum number of waiting notifications that are enqueued together.
	maxMergedBatch = 1024
	// positionSaveInterval and positionSaveEntries limit how much older the stored position may be than entries that no
	// sink matched. This saves a write per read if there are no sinks or no matches.
	positionSaveInterval = 250 * time.Millisecond
	positionSaveEntries  = 4096
	// maxCopiesPerScript and maxBytesPerScript limit the copies that one script makes, because it blocks Redis, and Redis checks
	// its memory limit only before the first write. The copies of the last entry may exceed them.
	maxCopiesPerScript = 4096
	maxBytesPerScript  = 8 << 20
	// maintainInterval is the time between two rounds of maintenance, with jitter. A round trims the log, logs
	// dropped entries, and reads state and log again, in case the node's log reader hangs or a rollback of Redis went
	// unnoticed.
	maintainInterval = 5 * time.Second
	// minTrimBytes is the minimum size of the notifications between two trims within the interval.
	minTrimBytes = 1 << 20
	retryMin     = 100 * time.Millisecond
	retryMax     = 5 * time.Second
)

var _ Queues = (*queue.Store)(nil)

// Dispatcher matches the notifications of one partition and enqueues them. Only [Dispatcher.Offer] and
// [Dispatcher.Reload] may be called concurrently with Run.
type Dispatcher struct {
	opts        Options
	batches     chan eventlog.Batch
	leading     atomic.Bool
	missedOffer atomic.Bool
	nextMatcher atomic.Pointer[Matcher] // set by Reload, nil if there is no change
	reloaded    chan struct{}           // signals that nextMatcher is set

	// The following fields belong to dispatchLoop.

	maintainAt        time.Time // of the next round of maintenance
	bytesSinceTrim    int64     // dispatched since the last trim
	matcher           *Matcher
	recorded          *Matcher // of the last RecordSinks
	sinks             []string
	backlogs          []int64        // by sink: maximum number of entries
	shares            []accountShare // by sink
	mustCount         bool           // one of them must be counted
	mustCountNow      bool           // before the next entry is enqueued
	sizes             []int64        // by sink: about an upper bound of the memory of its queue and scheduled retries
	unchecked         []int64        // by sink: bytes that were copied to its queue since limitBytes measured it
	nextSpaceCheck    time.Time
	nextStuckCheck    time.Time
	spaceInterval     time.Duration // from a queue that becomes full to the next space check
	bytesSinceMeasure int64         // added to the log and to queues
	readSize          eventlog.ReadSize
	fullLogged        time.Time
	fromStart         map[string]bool
	position          string // stored position
	unmatchedTo       string // no sink matches an entry after position and up to here
	unmatched         int    // number of these entries
	generation        int64
	joinedAt          []string         // by sink: the position after which its entries begin, "" if it is not active
	allJoined         bool             // all sinks are active and have joined before position
	catchUps          map[int]*catchUp // by sink that catches up
	stuckCount        int              // of catchUps
	page              logPage          // of the last catch-up step
	dropped           []int64          // by sink: not yet logged
	copied            []int            // by sink: in the current enqueue
	excluded          []excludedEntry  // not recorded yet
	scratch           []int
}

// NewDispatcher returns a dispatcher. Call Run to start it.
func NewDispatcher(o Options) (*Dispatcher, error) {
	if o.Matcher == nil || o.Log == nil || o.Queues == nil || o.Lease == nil {
		return nil, errors.New("create dispatcher: matcher, log, queues and lease are required")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Observer == nil {
		o.Observer = noopObserver{}
	}
	if o.RecordExcluded == nil {
		o.RecordExcluded = func(*relay.Notification, string) {}
	}
	if o.RecordLag == nil {
		o.RecordLag = func(bool) {}
	}
	if o.Memory == nil {
		o.Memory = noLimit{}
	}
	if o.RetrySizes == nil {
		o.RetrySizes = func(_ context.Context, sinks []string) ([]int64, error) { return make([]int64, len(sinks)), nil }
	}
	if o.Retention == nil {
		o.Retention = func() eventlog.Retention { return eventlog.Retention{} }
	}
	d := &Dispatcher{
		opts: o, batches: make(chan eventlog.Batch, offerBuffer), reloaded: make(chan struct{}, 1),
	}
	d.useMatcher(o.Matcher)
	return d, nil
}

// Reload replaces the sinks soon. A sink that is removed keeps its position in the log, in case it is configured again.
func (d *Dispatcher) Reload(m *Matcher) {
	d.nextMatcher.Store(m)
	select {
	case d.reloaded <- struct{}{}:
	default:
	}
}

func (d *Dispatcher) useMatcher(m *Matcher) {
	list := m.Sinks()
	former := make(map[string]accountShare, len(d.shares))
	formerSizes, formerCatchUps := make(map[string]int64, len(d.sizes)), make(map[string]*catchUp, len(d.catchUps))
	for i, name := range d.sinks {
		former[name], formerSizes[name] = d.shares[i], d.sizes[i]
		formerCatchUps[name] = d.catchUps[i]
	}
	d.matcher, d.sinks, d.backlogs, d.shares, d.sizes = m, nil, nil, nil, nil
	d.fromStart = make(map[string]bool, len(list))
	d.dropped, d.copied, d.unchecked = make([]int64, len(list)), make([]int, len(list)), make([]int64, len(list))
	d.catchUps = make(map[int]*catchUp)
	for i, s := range list {
		d.sinks = append(d.sinks, s.Name)
		d.backlogs = append(d.backlogs, partitionShare(s.Backlog, d.opts.Partitions))
		share := newAccountShare(d.backlogs[i], s.AccountShare)
		if f, ok := former[s.Name]; ok && f.limit == share.limit && f.backlog == share.backlog {
			share = f // counting hundreds of queues again would delay all sinks
		}
		d.shares = append(d.shares, share)
		size, ok := formerSizes[s.Name]
		if !ok {
			size = unknownSize
		}
		d.sizes = append(d.sizes, size)
		if c := formerCatchUps[s.Name]; c != nil {
			d.catchUps[i] = c
		}
		d.fromStart[s.Name] = s.FromStart
	}
}

// Offer passes a batch that the node has just read from the log. It never blocks. A dispatcher without the lease
// ignores the batch. A dispatcher that is too slow reads the log itself.
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

// Run dispatches while it holds the lease. It returns nil when ctx ends.
func (d *Dispatcher) Run(ctx context.Context) error {
	err := d.opts.Lease.Run(ctx, d.runAsLeader)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// runAsLeader dispatches until ctx ends. After an error it waits and continues from the stored position.
func (d *Dispatcher) runAsLeader(ctx context.Context) error {
	// Accept offers from here on. Earlier entries are read from the log.
	d.leading.Store(true)
	d.recorded = nil
	for i := range d.shares {
		d.shares[i].mustCount, d.sizes[i] = true, unknownSize // another node may have filled the queues
	}
	d.catchUps = nil
	d.maintainAt = time.Now().Add(backoff.Jitter(maintainInterval))
	defer func() {
		d.leading.Store(false)
		d.opts.RecordLag(false)
		d.page = logPage{}
		for len(d.batches) > 0 {
			<-d.batches
		}
		d.logDropped()
	}()
	retry := backoff.Backoff{Min: retryMin, Max: retryMax}
	for ctx.Err() == nil {
		start := time.Now()
		err := d.dispatchLoop(ctx)
		if err == nil || time.Since(start) > retryMax {
			retry.Reset()
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		if redisconn.IsOutOfMemory(err) {
			d.opts.Memory.Measure(ctx) // newRequest allows copies when Redis is known to be full
		}
		d.opts.Logger.WarnContext(ctx, "dispatching failed", "partition", d.opts.Partition, "error", err)
		if !retry.Sleep(ctx) {
			break
		}
	}
	return nil
}

// dispatchLoop reads the state from Redis and dispatches. It returns nil if the state must be read again.
func (d *Dispatcher) dispatchLoop(ctx context.Context) error {
	if err := d.loadState(ctx); err != nil {
		return err
	}
	if !time.Now().Before(d.maintainAt) { // errors have restarted this loop again and again
		if err := d.runMaintenance(ctx); err != nil {
			return err
		}
	}
	if err := d.limitAllQueues(ctx); err != nil {
		return err
	}
	if err := d.countAccounts(ctx); err != nil {
		return err
	}
	if again, err := d.catchUp(ctx); again || err != nil {
		return err
	}
	maintain := time.NewTimer(time.Until(d.maintainAt))
	defer maintain.Stop()
	save := time.NewTimer(positionSaveInterval)
	save.Stop()
	defer save.Stop()
	space := time.NewTimer(time.Until(d.nextSpaceCheck))
	defer space.Stop()
	saving := false
	for {
		var spaceCheck <-chan time.Time
		if len(d.listCatchingUp(true)) > 0 {
			space.Reset(time.Until(d.nextSpaceCheck))
			spaceCheck = space.C
		}
		if d.unmatched > 0 && !saving {
			save.Reset(positionSaveInterval)
		}
		saving = d.unmatched > 0
		again, err := false, error(nil)
		select {
		case <-ctx.Done():
			return nil
		case b := <-d.batches:
			again, err = d.dispatchLive(ctx, b)
		case <-d.reloaded: // unmatched entries were checked only against the old sinks
			_, err = d.savePosition(ctx)
			again = true
		case <-save.C:
			saving = false
			again, err = d.savePosition(ctx)
		case <-maintain.C:
			again, err = true, d.runMaintenance(ctx)
		case <-spaceCheck:
			err = d.checkSpace(ctx)
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
	d.position, d.unmatchedTo, d.unmatched, d.generation = s.Position, s.Position, 0, s.Generation
	d.discardExcluded()
	former := d.catchUps
	d.joinedAt, d.catchUps, d.allJoined = make([]string, len(d.sinks)), make(map[int]*catchUp), true
	for i, name := range d.sinks {
		if position, ok := s.Active[name]; ok {
			d.joinedAt[i] = position
			d.allJoined = d.allJoined && streamid.Compare(position, d.position) <= 0
			continue
		}
		d.allJoined = false
		position, ok := s.CatchingUp[name]
		if !ok {
			continue
		}
		if c := former[i]; c != nil {
			c.position, d.catchUps[i] = position, c
			continue
		}
		if err := d.logTrimmedSince(ctx, name, position); err != nil {
			return err
		}
		d.catchUps[i] = &catchUp{position: position}
	}
	d.updateStuckCount()
	d.page = logPage{}
	d.recordSinks(ctx)
	return nil
}

// recordSinks records the sinks of the matcher. Dispatching continues after an error, because only explanations need
// the record.
func (d *Dispatcher) recordSinks(ctx context.Context) {
	if d.opts.RecordSinks == nil || d.recorded == d.matcher {
		return
	}
	if err := d.opts.RecordSinks(ctx, d.position, d.matcher.Sinks()); err != nil {
		d.opts.Logger.DebugContext(ctx, "sinks could not be recorded", "partition", d.opts.Partition, "error", err)
		return
	}
	d.recorded = d.matcher
}
