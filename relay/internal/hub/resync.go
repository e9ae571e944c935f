package hub

import (
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
)

// Why a client gets a resync.
const (
	lostBehindCursor = "some entries after the cursor are no longer in the log; the remaining entries follow"
	lostLog          = "the cursor belongs to a log with another number of partitions; the stream continues with new " +
		"notifications"
	lostLive = "the log has lost notifications before this node read them"
)

// resyncAll sends a resync to the clients that a gap in a partition affects, and moves the feeds to its end.
func (h *Hub) resyncAll(f *fanout, b Batch) {
	at, _ := streamid.ParsePosition(b.End)
	if len(b.Notifications) > 0 {
		first, _ := streamid.ParsePosition(b.Notifications[0].Cursor)
		at = first.Predecessor()
	}
	h.history.invalidate(b.Partition)
	own := h.feeds[b.Partition]
	if own == h.mergedFeed {
		f.resyncFeed(h, own, b.Partition, at, allFeeds)
		return
	}
	f.resyncFeed(h, own, b.Partition, at, hubFeeds)
	f.resyncFeed(h, h.mergedFeed, b.Partition, at, accountFeeds)
}

func (f *fanout) resyncFeed(h *Hub, l *feed, partition int, at streamid.Position, who feedScope) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resetPartition(partition, at)
	told := 0
	h.index.mu.Lock()
	f.addAllMatches(h, partition, who)
	f.snapshotRecipients()
	h.index.mu.Unlock()
	for _, j := range f.jobs {
		hub, account := j.group.pipelineName()
		f.groupBurst.reset()
		f.groupBurst.push(newFrame(relay.ResyncMessage(hub, account, lostLive), j.group.format,
			l.formatCursor(l.positions)))
		for _, c := range j.clients {
			f.sendBurst(c, &f.groupBurst)
		}
		told += len(j.clients)
	}
	h.opts.Observer.Resynced(ResyncLog, told)
	f.reset(h)
}
