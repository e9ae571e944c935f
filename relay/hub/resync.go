package hub

import (
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/cursor"
)

// Why a client gets a resync.
const (
	lostBehindCursor = "some of what followed the cursor is no longer in the log; what still is comes next"
	lostLog          = "the cursor is of a log with another number of partitions; the stream goes on with what comes now"
	lostLive         = "the log has lost notifications before this node read them"
)

// resync tells everybody whom a gap in a partition concerns, and moves the lines to where it ends.
func (h *Hub) resync(f *fanout, b Batch) {
	at, _ := cursor.ParsePosition(b.Last)
	if len(b.Notifications) > 0 {
		first, _ := cursor.ParsePosition(b.Notifications[0].Cursor)
		at = first.Before()
	}
	h.history.forget(b.Partition)
	own := h.lines[b.Partition]
	if own == h.merged {
		f.resync(h, own, b.Partition, at, everyone)
		return
	}
	f.resync(h, own, b.Partition, at, hubRooms)
	f.resync(h, h.merged, b.Partition, at, accountRooms)
}

func (f *fanout) resync(h *Hub, l *line, partition int, at cursor.Position, who audience) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.restart(partition, at)
	told := 0
	h.index.mu.Lock()
	f.meetAll(h, partition, who)
	f.seal()
	h.index.mu.Unlock()
	for _, j := range f.jobs {
		hub, account := j.group.follows()
		f.all.reset()
		f.all.push(newFrame(relay.Resync(hub, account, lostLive), j.group.form, l.cursor(l.at)))
		for _, c := range j.clients {
			f.send(c, &f.all)
		}
		told += len(j.clients)
	}
	h.opts.Observer.Resynced(LostLive, told)
	f.reset(h)
}
