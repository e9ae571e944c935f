package delivery

import (
	"context"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// What the notifications of one digest can have in common.
const (
	ByTopic   = "topic"
	ByHub     = "hub"
	ByCluster = "cluster"
)

// DefaultDigestMax is how many notifications a digest lists where [Digest] leaves it out.
const DefaultDigestMax = 20

// Digest says how notifications are gathered into one delivery.
type Digest struct {
	// Wait is how long a digest gathers from its first notification on; zero is no digest.
	Wait time.Duration
	// Max is how many notifications it lists, and 4 MiB of them at most; the rest are counted. 20 where zero.
	Max int
	// By are ByTopic, ByHub and ByCluster, or fewer: there is a digest for each combination of their values.
	By []string
}

// usesDigests tells whether notifications may be gathered at all: every one where a digest was asked for, else what the rate
// makes wait, if the sink is better off with that.
func (p *Pipeline) usesDigests() bool {
	return p.opts.Digest.Wait > 0 || p.opts.DigestWhenLimited && p.rateLimiter.hasRate()
}

// addToDigest reports whether d became a part of a digest, and else whether the gate was passed by an attempt at d alone.
//
// What is gathered waits in Redis until its time has come, and longer while the destination is down or rests, or while the
// rate allows nothing: then it goes on gathering, so that people read one message about all of it.
func (p *Pipeline) addToDigest(ctx context.Context, d relay.Delivery) (done, granted bool, err error) {
	for p.retryLimit.isFull() {
		if err := p.waitForCapacity(ctx); err != nil {
			return false, false, err
		}
	}
	if off, known := p.isDisabled(); off && known {
		return false, false, ErrDisabled
	}
	if p.opts.Digest.Wait > 0 {
		done, err = p.addAllToDigest(ctx, d, p.opts.Digest.Wait, false)
		return done, false, err
	}
	pause := p.rateLimiter.rate.Interval()
	if done, err = p.addAllToDigest(ctx, d, pause, true); done || err != nil {
		return done, false, err
	}
	most, wait := p.breaker.available(1)
	if most > 0 {
		if granted, wait, err = p.tryRate(ctx); granted || err != nil {
			return false, granted, err
		}
	}
	done, err = p.addAllToDigest(ctx, d, max(pause, wait), false)
	return done, false, err
}

// addScheduledToDigest gathers a claimed delivery that was never attempted, as a replay of the log parks them, and reports whether
// it did. It holds a slot and an attempt then, which it gives back.
func (p *Pipeline) addScheduledToDigest(ctx context.Context, c claim, r *retryRecord) bool {
	off, _ := p.isDisabled()
	if off || !p.usesDigests() || r.Digest != nil || len(r.Attempts) > 0 || len(r.Notifications) != 1 {
		return false
	}
	g := p.newDigestEntry(r.Notifications[0].toNotification(), max(p.opts.Digest.Wait, p.rateLimiter.rate.Interval()))
	g.claimEnd = c.leaseEnd
	done, err := p.storeDigestEntry(ctx, g, false)
	if err == nil && !done {
		return false // Redis is full
	}
	p.concurrency.release(1)
	p.rateLimiter.returnTokens(1)
	if err != nil {
		p.logUnsettled(c, err)
		return true
	}
	p.retryLimit.decrement()
	return true
}

// addAllToDigest gathers d. With join it reports false where nothing of the sink waits that d could wait with; else only where Redis
// is full, or so many digests are open as deliveries may be parked, since only deliveries make room.
func (p *Pipeline) addAllToDigest(ctx context.Context, d relay.Delivery, wait time.Duration, join bool) (done bool, err error) {
	for _, n := range d.Notifications {
		if done, err = p.storeDigestEntry(ctx, p.newDigestEntry(n, wait), join); err != nil || !done {
			return false, err
		}
	}
	return done, nil
}

func (p *Pipeline) newDigestEntry(n relay.Notification, wait time.Duration) digestEntry {
	g := digestEntry{notification: n, max: p.opts.Digest.Max, wait: wait, arrivedAt: n.StoredAt(), maxBacklog: p.opts.Backlog}
	if g.arrivedAt.IsZero() {
		g.arrivedAt = p.opts.Now()
	}
	g.attributes, g.key = digestGroup(n, p.opts.Digest.By)
	return g
}

func (p *Pipeline) storeDigestEntry(ctx context.Context, g digestEntry, join bool) (done bool, err error) {
	var left time.Duration
	var fresh bool
	// It is safe to repeat: a digest counts an id once.
	err = retryWrite(ctx, func(ctx context.Context) error {
		var err error
		left, fresh, done, err = p.opts.Store.addToDigest(ctx, p.opts.Name, g, join)
		if err != nil && strings.Contains(err.Error(), "OOM command not allowed") {
			return nil
		}
		return err
	})
	if err == nil && fresh {
		p.onRetryScheduled(left)
	}
	return done, err
}
