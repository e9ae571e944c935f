package delivery

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// deadLetterNoticeInterval is the least pause between two notices about the dead letters of one sink, on this node.
const deadLetterNoticeInterval = 10 * time.Second

// deadLetterCoalescer holds notices about the dead letters of a sink back while they come as a flood: the first is told at once, then
// the last of each span of time with how many there were.
type deadLetterCoalescer struct {
	mu           sync.Mutex
	nextNoticeAt time.Time // before it nothing is told
	count        int       // not told yet
	last         notice
}

func (d *deadLetterCoalescer) add(n notice) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = n
	d.count++
}

// restore takes back what could not be told.
func (d *deadLetterCoalescer) restore(n notice, count int, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.count == 0 {
		d.last = n
	}
	d.count += count
	d.nextNoticeAt = now.Add(time.Second)
}

// takeDue returns what is to be told now, if there is something.
func (d *deadLetterCoalescer) takeDue(now time.Time, force bool) (notice, int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.count == 0 || !force && now.Before(d.nextNoticeAt) {
		return notice{}, 0
	}
	count := d.count
	d.count, d.nextNoticeAt = 0, now.Add(deadLetterNoticeInterval)
	return d.last, count
}

// noteDeadLetter tells about a dead letter, now or later. That of a notice of our own is told to nobody: it would go round.
func (p *Pipeline) noteDeadLetter(ctx context.Context, id, reason string, r *store.Record, cause error) {
	at := slices.IndexFunc(r.Notifications, func(n store.Notification) bool { return !strings.HasPrefix(n.Topic, relay.OperationalPrefix) })
	if at < 0 || !p.opts.Notices.hasListener(relay.TopicDeadLetterCreated, p.opts.Name) {
		return
	}
	n := r.Notifications[at]
	p.deadLetterNotices.add(notice{
		Topic: relay.TopicDeadLetterCreated,
		Object: noticeObject{
			ID: id, State: reason, Error: store.Truncate(cause.Error(), store.MaxErrorBytes),
			deadLetterNotice: &deadLetterNotice{Sink: p.opts.Name, Topic: n.Topic, Attempts: r.AttemptCount},
		},
		Context: relay.Context{HubID: n.Hub, AccountID: n.Account},
	})
	p.sendDeadLetterNotices(ctx, false)
}

// sendDeadLetterNotices tells what it is time for, or all there is where force is set. What cannot be told now is told later.
func (p *Pipeline) sendDeadLetterNotices(ctx context.Context, force bool) {
	what, count := p.deadLetterNotices.takeDue(p.opts.Now(), force)
	if count == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), redisTimeout)
	defer cancel()
	dead := *what.Object.deadLetterNotice
	dead.Count = count
	what.Object.deadLetterNotice = &dead
	note, err := p.opts.Notices.build(what)
	if err == nil {
		err = p.opts.Notices.send(ctx, p.opts.Name, note)
	}
	if err != nil {
		p.deadLetterNotices.restore(what, count, p.opts.Now())
		p.opts.Log.Warn("cannot tell other sinks about dead letters; trying again soon", "error", err)
	}
}
