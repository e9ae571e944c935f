package delivery

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
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
	pause := p.rateLimiter.Rate.Interval()
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
func (p *Pipeline) addScheduledToDigest(ctx context.Context, c store.Claim, r *store.Record) bool {
	off, _ := p.isDisabled()
	if off || !p.usesDigests() || r.Digest != nil || len(r.Attempts) > 0 || len(r.Notifications) != 1 {
		return false
	}
	g := p.newDigestEntry(r.Notifications[0].Decode(), max(p.opts.Digest.Wait, p.rateLimiter.Rate.Interval()))
	g.LeaseEnd = c.LeaseEnd
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

func (p *Pipeline) newDigestEntry(n relay.Notification, wait time.Duration) store.DigestEntry {
	e := store.DigestEntry{
		Notification: n, MaxListed: p.opts.Digest.Max, Wait: wait, ArrivedAt: n.StoredAt(), MaxBacklog: p.opts.Backlog,
	}
	if e.ArrivedAt.IsZero() {
		e.ArrivedAt = p.opts.Now()
	}
	e.Shared, e.Group = digestGroup(n, p.opts.Digest.By)
	return e
}

func (p *Pipeline) storeDigestEntry(ctx context.Context, e store.DigestEntry, join bool) (done bool, err error) {
	e.OnlyIfWaiting = join
	var added store.AddedToDigest
	// It may be repeated, because a digest counts an ID once.
	err = retryWrite(ctx, func(ctx context.Context) error {
		var err error
		added, err = p.opts.Store.Digests.Add(ctx, p.opts.Name, e)
		if err != nil && strings.Contains(err.Error(), "OOM command not allowed") {
			return nil
		}
		return err
	})
	if err == nil && added.IsNew {
		p.onRetryScheduled(added.SealAfter)
	}
	return added.Done, err
}

// SharedAttributes returns the values that the notifications of a digest by these names have in common with n. Names
// without a value are omitted.
func SharedAttributes(n relay.Notification, by []string) map[string]string {
	shared := make(map[string]string, len(by))
	for _, name := range by {
		value := ""
		switch name {
		case ByTopic:
			value = n.Topic
		case ByHub:
			value = n.Hub
		case ByCluster:
			// A notification that cannot be decoded has no cluster.
			envelope, _ := n.Envelope()
			clusters := slices.Clone(envelope.Context.Clusters)
			slices.Sort(clusters)
			value = strings.Join(slices.Compact(clusters), ", ")
		}
		if value != "" {
			shared[name] = value
		}
	}
	return shared
}

// digestGroup returns the shared values of a notification's digest and a short name for them.
func digestGroup(n relay.Notification, by []string) (shared map[string]string, group string) {
	shared = SharedAttributes(n, by)
	hash := sha256.New()
	for _, name := range by {
		_, _ = fmt.Fprintf(hash, "%s=%q\n", name, shared[name]) // never returns an error
	}
	return shared, hex.EncodeToString(hash.Sum(nil)[:8])
}
