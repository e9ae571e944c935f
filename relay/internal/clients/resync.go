package clients

import (
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
)

// The texts of resync messages.
const (
	lostAfterCursor = "some entries after the cursor are no longer in the log; the remaining ones follow"
	lostLog         = "the cursor is of another log; the stream continues with new events"
	lostLive        = "the log has lost events before this node read them"
)

// resyncAll sends a resync to all clients that a gap affects, and moves the feeds to the end of the gap.
func (s *Server) resyncAll(bc *broadcast, b Batch) {
	at, _ := streamid.ParsePosition(b.End)
	if len(b.Notifications) > 0 {
		first, _ := streamid.ParsePosition(b.Notifications[0].Cursor)
		at = first.Predecessor()
	}
	s.logCache.Invalidate(b.Partition)
	own := s.feeds[b.Partition]
	if own == s.mergedFeed {
		bc.resyncFeed(s, own, b.Partition, at, allFeeds)
		return
	}
	bc.resyncFeed(s, own, b.Partition, at, hubFeeds)
	bc.resyncFeed(s, s.mergedFeed, b.Partition, at, accountFeeds)
}

func (bc *broadcast) resyncFeed(s *Server, f *feed, partition int, at streamid.Position, who feedScope) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resetPartition(partition, at)
	clients := 0
	s.index.mu.Lock()
	bc.addAllMatches(s, partition, who)
	bc.snapshotRecipients()
	s.index.mu.Unlock()
	for _, j := range bc.jobs {
		hub, account := j.group.streamName()
		bc.groupBurst.reset()
		message := relay.ResyncMessage(hub, account, lostLive)
		bc.groupBurst.push(frame.New(&relay.Notification{Data: message}, j.group.format, f.formatEndCursor()))
		for _, c := range j.clients {
			bc.writeTo(c, &bc.groupBurst)
		}
		clients += len(j.clients)
	}
	s.opts.Observer.Resynced(ResyncLog, clients)
	bc.reset(s)
}
