package eventlog

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
)

// lagInterval is the time between two comparisons of the read positions with the log.
const lagInterval = 5 * time.Second

// ReadPositions are the positions up to which this node has read the partitions. It may be used concurrently.
type ReadPositions []atomic.Pointer[string]

// Set sets the position of one partition.
func (p ReadPositions) Set(partition int, position string) { p[partition].Store(&position) }

// WatchLag reports the lag of each partition until ctx ends: the age of the oldest notification that this node has not
// read. It compares the positions with the log, because the time of the last read does not reveal a stuck reader or an
// idle log. While Redis is unreachable it reports nothing. All positions must be set before.
func (l *Log) WatchLag(ctx context.Context, read ReadPositions, report func(partition int, lag time.Duration)) error {
	tick := time.NewTicker(lagInterval)
	defer tick.Stop()
	for {
		for partition := range read {
			next, err := l.Range(ctx, partition, *read[partition].Load(), 1)
			if err != nil {
				continue
			}
			lag := time.Duration(0)
			if len(next) > 0 {
				lag = Age(next[0].Cursor, time.Now())
			}
			report(partition, lag)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// IsLagging reports whether a tail reader or a dispatcher of this node has not reached the end of its partition for a time, because
// events are stored faster than it processes them. Unlike [Log.WatchLag], it does not compare the clocks of this node and of Redis.
func (l *Log) IsLagging(span time.Duration) bool {
	return l.tailLags.isLagging(span) || l.dispatchLags.isLagging(span)
}

// RecordDispatchLag records whether the dispatcher of a partition expects more entries at once.
func (l *Log) RecordDispatchLag(partition int, isLagging bool) {
	l.dispatchLags.setLagging(partition, isLagging)
}

// lags are the times since which readers lag, by partition. A reader that does not lag has none.
type lags []atomic.Pointer[time.Time]

func (l lags) isLagging(span time.Duration) bool {
	for i := range l {
		if since := l[i].Load(); since != nil && time.Since(*since) >= span {
			return true
		}
	}
	return false
}

func (l lags) setLagging(partition int, isLagging bool) {
	switch since := &l[partition]; {
	case !isLagging:
		since.Store(nil)
	case since.Load() == nil:
		now := time.Now()
		since.Store(&now)
	}
}

// recentAccounts are the accounts of the entries that this node has read: the one of the last entry, and the last other one.
type recentAccounts struct {
	mu          sync.Mutex
	last, other accountRead
}

type accountRead struct {
	account string
	at      time.Time // zero before the first entry
}

func (r *recentAccounts) recordAccounts(list []relay.Notification) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for i := range list {
		if account := list[i].Account; account != r.last.account || r.last.at.IsZero() {
			r.last, r.other = accountRead{account, now}, r.last
		}
	}
	r.last.at = now
}

// HasReadOthers reports whether a reader of this node has read an entry of another account, or of none, within a time.
func (l *Log) HasReadOthers(account string, within time.Duration) bool {
	r := &l.accounts
	r.mu.Lock()
	defer r.mu.Unlock()
	found := r.last
	if found.account == account {
		found = r.other
	}
	return time.Since(found.at) < within
}

// Age returns the age of an entry. Its ID has the time of Redis, so a clock difference could make the age negative; then
// the result is 0.
func Age(id string, now time.Time) time.Duration {
	at, ok := streamid.ParsePosition(id)
	if !ok {
		return 0
	}
	return max(now.Sub(at.Time()), 0)
}
