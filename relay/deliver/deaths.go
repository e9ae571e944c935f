package deliver

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// deathsEvery is the least pause between two notices about the dead letters of one sink, on this node.
const deathsEvery = 10 * time.Second

// deaths holds notices about the dead letters of a sink back while they come as a flood: the first is told at once, then
// the last of each span of time with how many there were.
type deaths struct {
	mu    sync.Mutex
	next  time.Time // before it nothing is told
	count int       // not told yet
	last  notice
}

func (d *deaths) add(n notice) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = n
	d.count++
}

// back takes back what could not be told.
func (d *deaths) back(n notice, count int, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.count == 0 {
		d.last = n
	}
	d.count += count
	d.next = now.Add(time.Second)
}

// take returns what is to be told now, if there is something.
func (d *deaths) take(now time.Time, force bool) (notice, int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.count == 0 || !force && now.Before(d.next) {
		return notice{}, 0
	}
	count := d.count
	d.count, d.next = 0, now.Add(deathsEvery)
	return d.last, count
}

// died tells about a dead letter, now or later. That of a notice of our own is told to nobody: it would go round.
func (p *Pipeline) died(ctx context.Context, id, reason string, r *record, cause error) {
	at := slices.IndexFunc(r.Notifications, func(n parked) bool { return !strings.HasPrefix(n.Topic, relay.OperationalPrefix) })
	if at < 0 || !p.o.Notices.heeded(relay.TopicDeadLetterCreated, p.o.Name) {
		return
	}
	n := r.Notifications[at]
	p.deaths.add(notice{
		Topic: relay.TopicDeadLetterCreated,
		Object: noticeObject{
			ID: id, State: reason, Error: clip(cause.Error(), keptError),
			noticeOfDead: &noticeOfDead{Sink: p.o.Name, Topic: n.Topic, Attempts: r.Made},
		},
		Context: relay.Context{HubID: n.Hub, AccountID: n.Account},
	})
	p.tellDeaths(ctx, false)
}

// tellDeaths tells what it is time for, or all there is where force is set. What cannot be told now is told later.
func (p *Pipeline) tellDeaths(ctx context.Context, force bool) {
	what, count := p.deaths.take(p.o.Now(), force)
	if count == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastChance)
	defer cancel()
	dead := *what.Object.noticeOfDead
	dead.Count = count
	what.Object.noticeOfDead = &dead
	note, err := p.o.Notices.make(what)
	if err == nil {
		err = p.o.Notices.send(ctx, p.o.Name, note)
	}
	if err != nil {
		p.deaths.back(what, count, p.o.Now())
		p.o.Log.Warn("cannot tell other sinks about dead letters; trying again soon", "error", err)
	}
}
