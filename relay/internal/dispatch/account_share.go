package dispatch

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// minCountInterval is the minimum time between two counts of the accounts in a queue.
	minCountInterval = time.Second
	// countShare is the maximum share of the time for counting, as a divisor, because a count reads the whole queue.
	countShare = 20
)

// headroomShare is the part of a backlog, as a divisor, that is free after events of accounts above their share were dropped.
const headroomShare = 16

// accountShare limits the entries of one account in the queue of a sink, so that no account can push those of others
// out. An account that uses the queue alone has no limit, and neither have notifications without an account.
type accountShare struct {
	// limit is the maximum number of entries of an account. 0 is no limit. backlog is the
	// maximum of all accounts together.
	limit, backlog int64
	// counts are upper bounds of the entries of each account, because entries leave the queue without notice. Once one
	// reaches the limit, the queue is counted.
	counts map[string]int64
	total  int64
	// countedAccounts is the number of accounts when the queue was counted.
	countedAccounts int
	// overCount is the number of accounts above the limit by these bounds.
	overCount int
	// exceeded are the accounts that had reached the limit when the queue was counted.
	exceeded map[string]bool
	// mustCount is set if an upper bound is no longer precise enough. mustCountNow is set if the next entry might also push
	// out one of another account.
	mustCount, mustCountNow bool
	nextCount               time.Time
	// dropped is the number of entries that are not yet logged, and droppedOf their accounts.
	dropped   int64
	droppedOf map[string]bool
}

// maxUncountedAccounts limits the memory: with more accounts, and more than twice as many as were counted, the queue is counted again.
// Accounts without entries are then removed.
const maxUncountedAccounts = 10_000

func newAccountShare(backlog int64, percent int) accountShare {
	return accountShare{
		limit: shareLimit(backlog, percent), backlog: backlog, counts: make(map[string]int64), mustCount: true,
		droppedOf: make(map[string]bool),
	}
}

// admit counts an entry of an account. It returns false if the account has reached the limit.
func (s *accountShare) admit(account string) bool {
	if s.limit == 0 {
		return true
	}
	if s.exceeded[account] {
		s.recordDrop(account)
		return false
	}
	n, isKnown := s.counts[account]
	if !isKnown {
		account = strings.Clone(account) // a part of a string would keep the memory of its event
	}
	n++
	s.counts[account] = n
	s.total++
	if account != "" && n == s.limit+1 {
		s.overCount++
	}
	s.mustCount = s.mustCount || s.overCount > 0 || s.total > 4*s.limit || len(s.counts) > max(2*s.countedAccounts, maxUncountedAccounts)
	s.mustCountNow = s.mustCountNow || s.overCount > 0 && len(s.counts) > 1 && s.total >= s.backlog
	return true
}

func (s *accountShare) recordDrop(account string) {
	s.dropped++
	s.droppedOf[account] = true
}

// update replaces the upper bounds by the counted entries.
func (s *accountShare) update(counts map[string]int64) {
	s.counts, s.mustCount, s.mustCountNow, s.total, s.exceeded, s.overCount = counts, false, false, 0, nil, 0
	s.countedAccounts = len(counts)
	for account, n := range counts {
		s.total += n
		if account == "" || n < s.limit {
			continue
		}
		if n > s.limit {
			s.overCount++
		}
		if len(counts) == 1 {
			continue
		}
		if s.exceeded == nil {
			s.exceeded = make(map[string]bool)
		}
		s.exceeded[account] = true
	}
}

// listExcess returns how many entries must be dropped to make room, and at most how many of each account.
func (s *accountShare) listExcess() (count int64, atMost map[string]int64) {
	if s.overCount == 0 || s.total < s.backlog {
		return 0, nil
	}
	atMost = make(map[string]int64)
	for account := range s.exceeded {
		atMost[account] = s.counts[account] - s.limit
		count += atMost[account]
	}
	return min(count, s.total-s.backlog+max(s.backlog/headroomShare, 1)), atMost
}

// recordExcessDrop counts a dropped entry of an account above its share.
func (s *accountShare) recordExcessDrop(account string) {
	s.counts[account]--
	s.total--
	if s.counts[account] == s.limit {
		s.overCount--
	}
	s.recordDrop(account)
}

// shareLimit returns the maximum number of entries of an account for a backlog and a share in percent.
func shareLimit(backlog int64, percent int) int64 {
	if percent <= 0 || percent >= 100 || backlog == 0 {
		return 0
	}
	return max(backlog*int64(percent)/100, 1)
}

// admitMatches removes the sinks from found, from an index on, in whose queue the account has reached its share.
func (d *Dispatcher) admitMatches(n *relay.Notification, found []int, from int) []int {
	kept := found[:from]
	for _, i := range found[from:] {
		if d.shares[i].admit(n.Account) {
			d.mustCount = d.mustCount || d.shares[i].mustCount
			d.mustCountNow = d.mustCountNow || d.shares[i].mustCountNow
			kept = append(kept, i)
			continue
		}
		d.opts.Observer.Dropped(d.sinks[i], 1)
		entry := excludedEntry{*n, d.sinks[i]}
		entry.n.Data = nil // it may be large
		d.excluded = append(d.excluded, entry)
	}
	return kept
}

// excludedEntry is an entry that a sink does not get, because its account has used its share.
type excludedEntry struct {
	n    relay.Notification // without data
	sink string
}

// recordExcluded records the excluded entries of a request that was committed.
func (d *Dispatcher) recordExcluded() {
	for i := range d.excluded {
		d.opts.RecordExcluded(&d.excluded[i].n, d.excluded[i].sink)
	}
	d.discardExcluded()
}

// discardExcluded removes the excluded entries that will be matched again.
func (d *Dispatcher) discardExcluded() {
	clear(d.excluded)
	d.excluded = d.excluded[:0]
}

// countAccounts counts the queues whose upper bounds are no longer precise enough, and those of exceeded accounts.
func (d *Dispatcher) countAccounts(ctx context.Context) error {
	d.mustCount, d.mustCountNow = false, false
	for i := range d.shares {
		s := &d.shares[i]
		if s.limit == 0 || !s.mustCount && len(s.exceeded) == 0 {
			continue
		}
		start := time.Now()
		if start.Before(s.nextCount) && !s.mustCountNow {
			d.mustCount = true
			continue
		}
		counts, err := d.opts.Queues.CountAccounts(ctx, d.sinks[i], d.opts.Partition)
		if err != nil {
			return err
		}
		s.update(counts)
		if err := d.dropExcess(ctx, i); err != nil {
			return err
		}
		s.nextCount = time.Now().Add(max(minCountInterval, countShare*time.Since(start)))
	}
	return nil
}

// dropExcess makes room in the full queue of a sink. It drops the newest entries of accounts above their share.
func (d *Dispatcher) dropExcess(ctx context.Context, sink int) error {
	s := &d.shares[sink]
	count, atMost := s.listExcess()
	if count == 0 {
		return nil
	}
	dropped, err := d.opts.Queues.DropNewest(ctx, d.sinks[sink], d.opts.Partition, count, atMost)
	for i := range dropped {
		s.recordExcessDrop(dropped[i].Account)
		d.opts.RecordExcluded(&dropped[i], d.sinks[sink])
	}
	if len(dropped) > 0 {
		d.opts.Observer.Dropped(d.sinks[sink], int64(len(dropped)))
	}
	if int64(len(dropped)) < count {
		s.overCount = 0 // the rest is in delivery, so another count would not help
	}
	return err
}

// logExceeded logs the entries that were dropped because of an account's share.
func (d *Dispatcher) logExceeded() {
	for i := range d.shares {
		s := &d.shares[i]
		if s.dropped == 0 {
			continue
		}
		d.opts.Logger.Error("accounts use their share of the backlog of a sink, their new events are dropped",
			"sink", d.sinks[i], "partition", d.opts.Partition, "accounts", slices.Sorted(maps.Keys(s.droppedOf)),
			"dropped_count", s.dropped, "limit", s.limit)
		s.dropped = 0
		clear(s.droppedOf)
	}
}
