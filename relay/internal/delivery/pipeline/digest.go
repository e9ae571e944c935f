package pipeline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/admission"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// The values that the notifications of a digest can have in common.
const (
	ByTopic   = store.SharedTopic
	ByHub     = store.SharedHub
	ByCluster = store.SharedCluster
	ByAccount = store.SharedAccount
)

// DefaultDigestMax is the default of [Digest].Max.
const DefaultDigestMax = 20

// Digest configures digests, which are deliveries that summarize many notifications.
type Digest struct {
	// Wait is the time from the first notification of a digest until it is sealed. 0 disables digests.
	Wait time.Duration
	// Max is the maximum number of notifications that a digest lists, up to 4 MiB of them. The rest is counted. The
	// default is 20.
	Max int
	// By contains ByTopic, ByHub, ByCluster and ByAccount, or some of them. Each combination of their values has its own digest.
	By []string
}

// digestStage adds notifications to digests in Redis: all of them if the sink has digests, and otherwise only those
// that would have to wait for the rate limit. A sealed digest comes back as a claim. A digest stays open while the
// destination fails or has asked for a pause, so people get one message about that time.
type digestStage struct {
	next      Handler
	opts      *Options
	admission *admission.Admission
	depth     *depthTracker
	store     *store.Digests
}

func (s *digestStage) Handle(ctx context.Context, it *Item) error {
	add := s.addFresh
	if it.Claim != nil {
		add = s.addReplayed
	}
	if done, err := add(ctx, it); done || err != nil {
		return err
	}
	return s.next.Handle(ctx, it)
}

// addFresh returns false if the item must be attempted alone. Its permit may then contain a token.
func (s *digestStage) addFresh(ctx context.Context, it *Item) (done bool, err error) {
	for s.admission.IsFull() {
		if err := s.admission.WaitOpen(ctx, &it.Permit); err != nil {
			return false, err
		}
	}
	if s.opts.isErased(it) {
		return true, nil
	}
	if wait := s.opts.Digest.Wait; wait > 0 {
		return s.addAll(ctx, it.Delivery, wait, false)
	}
	interval := s.opts.Rate.Interval()
	if done, err = s.addAll(ctx, it.Delivery, interval, true); done || err != nil {
		return done, err
	}
	wait, err := s.admission.TryRate(ctx, &it.Permit)
	if err != nil || it.Permit.HasToken() {
		return false, err
	}
	return s.addAll(ctx, it.Delivery, max(interval, wait), false)
}

// addReplayed adds a claimed notification that was never attempted.
func (s *digestStage) addReplayed(ctx context.Context, it *Item) (done bool, err error) {
	if !it.isReplayed() {
		return false, nil
	}
	e := s.opts.newDigestEntry(it.Delivery.Notifications[0], max(s.opts.Digest.Wait, s.opts.Rate.Interval()))
	e.LeaseEnd = it.Claim.LeaseEnd
	done, err = s.add(ctx, e)
	switch {
	case err != nil:
		s.opts.Log.Warn("replayed event could not be added to a digest",
			"delivery_id", it.Claim.ID, "error", err)
		err = fmt.Errorf("%w: %w", errUnsettled, err)
	case done:
		s.depth.removeOne()
	}
	if done || err != nil {
		it.Permit.Cancel()
	}
	return done, err
}

// addAll adds all notifications of a delivery. It returns false if Redis is full or the backlog allows no other digest,
// because only deliveries free memory, or with onlyIfWaiting if the sink has nothing waiting.
func (s *digestStage) addAll(
	ctx context.Context, d relay.Delivery, wait time.Duration, onlyIfWaiting bool,
) (done bool, err error) {
	for _, n := range d.Notifications {
		e := s.opts.newDigestEntry(n, wait)
		e.OnlyIfWaiting = onlyIfWaiting
		if done, err = s.add(ctx, e); err != nil || !done {
			return false, err
		}
	}
	return done, nil
}

func (s *digestStage) add(ctx context.Context, e store.DigestEntry) (done bool, err error) {
	var added store.AddedToDigest
	// It may be repeated, because a digest counts an ID once.
	err = store.Persist(ctx, func(ctx context.Context) error {
		var err error
		added, err = s.store.Add(ctx, s.opts.Name, e)
		if redisconn.IsOutOfMemory(err) {
			return nil
		}
		return err
	})
	if err == nil && added.IsNew {
		s.opts.Wake(added.SealAfter)
	}
	return added.Done, err
}

func (o *Options) newDigestEntry(n relay.Notification, wait time.Duration) store.DigestEntry {
	e := store.DigestEntry{
		Notification: n, MaxListed: o.Digest.Max, Wait: wait, ArrivedAt: n.StoredAt(), MaxBacklog: o.Backlog,
		MaxBytes: o.maxOpenDigestBytes(),
	}
	if e.ArrivedAt.IsZero() {
		e.ArrivedAt = o.Now()
	}
	e.Shared, e.Group = digestGroup(n, o.Digest.By)
	return e
}

// maxOpenDigestBytes returns the maximum memory of all open digests of the sink together, or 0 for no limit.
func (o *Options) maxOpenDigestBytes() int64 {
	if o.BacklogBytes == 0 && o.DigestBytes != nil {
		return o.DigestBytes()
	}
	return o.BacklogBytes
}

// maxSharedValue is the maximum length of a shared value of a digest in bytes. An event can name any number of clusters.
const maxSharedValue = 1 << 10

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
		case ByAccount:
			value = n.Account
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
	for name, value := range shared {
		shared[name] = relay.Truncate(value, maxSharedValue)
	}
	return shared, hex.EncodeToString(hash.Sum(nil)[:8])
}
