package notice

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

const (
	// deadLetterInterval is the minimum time between two notices about the dead letters of one sink, on one node.
	deadLetterInterval = 10 * time.Second
	// deadLetterRetryDelay is the delay after a notice could not be sent.
	deadLetterRetryDelay = time.Second
)

// DeadLetters publishes notices about the dead letters of one sink. If there are many, it sends the first at once, and
// then the last of each interval with their number. It may be used concurrently.
type DeadLetters struct {
	publisher *Publisher
	sink      string
	now       func() time.Time
	log       *slog.Logger

	mu     sync.Mutex
	nextAt time.Time // of the next notice
	count  int       // of dead letters without a notice
	last   body
}

// NewDeadLetters returns the notices of a sink. p may be nil.
func NewDeadLetters(p *Publisher, sink string, now func() time.Time, log *slog.Logger) *DeadLetters {
	return &DeadLetters{publisher: p, sink: sink, now: now, log: log}
}

// Add publishes a dead letter, now or later. It ignores a dead letter that contains only notices, because a notice
// about it could become a dead letter too, without end.
func (d *DeadLetters) Add(ctx context.Context, id, reason string, r *store.Record, cause error) {
	i := slices.IndexFunc(r.Notifications, func(n store.Notification) bool {
		return !strings.HasPrefix(n.Topic, relay.OperationalPrefix)
	})
	if i < 0 || !d.publisher.hasListener(relay.TopicDeadLetterCreated, d.sink) {
		return
	}
	n := r.Notifications[i]
	d.mu.Lock()
	d.last = body{
		Topic: relay.TopicDeadLetterCreated,
		Object: object{
			ID: id, State: reason, Error: store.Truncate(cause.Error(), store.MaxErrorBytes),
			deadLetterInfo: &deadLetterInfo{Sink: d.sink, Topic: n.Topic, Attempts: r.AttemptCount},
		},
		Context: relay.Context{HubID: n.Hub, AccountID: n.Account},
	}
	d.count++
	d.mu.Unlock()
	d.Flush(ctx, false)
}

// Flush sends a notice if one is due, or with force if one is waiting.
func (d *DeadLetters) Flush(ctx context.Context, force bool) {
	b, count := d.takeDue(force)
	if count == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.CommandTimeout)
	defer cancel()
	info := *b.Object.deadLetterInfo
	info.Count = count
	b.Object.deadLetterInfo = &info
	n, err := d.publisher.newNotification(b)
	if err == nil {
		err = d.publisher.send(ctx, d.sink, n)
	}
	if err != nil {
		d.restore(b, count)
		d.log.Warn("notice about dead letters failed", "error", err)
	}
}

func (d *DeadLetters) takeDue(force bool) (b body, count int) {
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.count == 0 || !force && now.Before(d.nextAt) {
		return body{}, 0
	}
	count = d.count
	d.count, d.nextAt = 0, now.Add(deadLetterInterval)
	return d.last, count
}

// restore adds a notice again that could not be sent.
func (d *DeadLetters) restore(b body, count int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.count == 0 {
		d.last = b
	}
	d.count += count
	d.nextAt = d.now().Add(deadLetterRetryDelay)
}
