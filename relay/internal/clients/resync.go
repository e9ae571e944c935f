package clients

import (
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
)

// The texts of resync messages.
const (
	lostAfterCursor = "some entries after the cursor are no longer in the log; the remaining ones follow"
	lostLog         = "the cursor is of a log with another number of partitions; " +
		"the stream continues with new events"
	lostLive = "the log has lost events before this node read them"
)

// resyncAll sends a resync to all clients that a gap affects, and moves the feeds to the end of the gap.
func (s *Server) resyncAll(f *broadcast, b Batch) {
	at, _ := streamid.ParsePosition(b.End)
	if len(b.Notifications) > 0 {
		first, _ := streamid.ParsePosition(b.Notifications[0].Cursor)
		at = first.Predecessor()
	}
	s.logCache.Invalidate(b.Partition)
	own := s.feeds[b.Partition]
	if own == s.mergedFeed {
		f.resyncFeed(s, own, b.Partition, at, allFeeds)
		return
	}
	f.resyncFeed(s, own, b.Partition, at, hubFeeds)
	f.resyncFeed(s, s.mergedFeed, b.Partition, at, accountFeeds)
}

func (f *broadcast) resyncFeed(h *Server, l *feed, partition int, at streamid.Position, who feedScope) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resetPartition(partition, at)
	clients := 0
	h.index.mu.Lock()
	f.addAllMatches(h, partition, who)
	f.snapshotRecipients()
	h.index.mu.Unlock()
	for _, j := range f.jobs {
		hub, account := j.group.streamName()
		f.groupBurst.reset()
		message := relay.ResyncMessage(hub, account, lostLive)
		f.groupBurst.push(frame.New(&relay.Notification{Data: message}, j.group.format, l.formatEndCursor()))
		for _, c := range j.clients {
			f.writeTo(c, &f.groupBurst)
		}
		clients += len(j.clients)
	}
	h.opts.Observer.Resynced(ResyncLog, clients)
	f.reset(h)
}
