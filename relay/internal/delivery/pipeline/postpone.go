package pipeline

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/internal/logsample"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/admission"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

const (
	// A delivery is postponed by minPostponedDelay, but not more than postponedPerMinute become due in a minute, because each
	// claim has a cost, unless the delay would exceed maxPostponedDelay.
	minPostponedDelay  = 10 * time.Second
	maxPostponedDelay  = 10 * time.Minute
	postponedPerMinute = 5000
	// maxRemembered is the number of postponed and failed deliveries that become due when the destination recovers. Further ones
	// wait until their delay ends.
	maxRemembered = 20_000
	// purgeInterval is the minimum time between two searches for deliveries that are due anyway.
	purgeInterval = time.Second
	// maxEarlyRetries is the maximum number of attempts of a delivery that a recovery makes earlier than its schedule. With fewer than
	// nine delays, it is a third of them.
	maxEarlyRetries = 3
	// maxMadeDue is the number of deliveries that one success makes due. If the destination fails again, each costs two writes, and
	// one of its early attempts.
	maxMadeDue = 500
	// searchTimeout limits the search of a queue for other accounts.
	searchTimeout = time.Second
)

// postponer schedules fresh deliveries of failing accounts without an attempt. Otherwise they would delay other accounts.
type postponer struct {
	opts      *Options
	admission *admission.Admission
	warnings  *logsample.Limiter
	searching sync.Mutex
	// isMakingDue is set when the destination recovers, until all deliveries are due for which it works.
	isMakingDue atomic.Bool

	mu         sync.Mutex
	remembered map[string]rememberedDelivery // postponed or failed deliveries by ID, at most maxRemembered
	nextPurge  time.Time
}

// rememberedDelivery is a scheduled delivery. Another node can claim it when it is due.
type rememberedDelivery struct {
	account admission.Account
	dueAt   time.Time
}

// postpone schedules a fresh delivery.
func (p *postponer) postpone(ctx context.Context, it *Item) error {
	if p.opts.isErased(it) {
		return nil
	}
	it.Record = store.NewRecord(it.Delivery, p.opts.Now())
	delay := p.postponedDelay()
	if err := it.Origin.Retry(ctx, it, delay); err != nil {
		return err
	}
	p.rememberDelivery(it.Delivery.ID, it.Permit.Account, delay)
	p.makeDueIfRecovered(ctx, it.Permit.Account)
	p.logPostponed(it)
	p.searchQueue(ctx)
	return nil
}

// postponeRetry schedules a retry later without an attempt, or returns errTooOld.
func (p *postponer) postponeRetry(ctx context.Context, it *Item) error {
	if p.opts.isTooOld(it.Record) {
		return errTooOld
	}
	delay := p.postponedDelay()
	if err := it.Origin.Release(ctx, it, delay); err != nil {
		return err
	}
	p.rememberDelivery(it.Claim.ID, it.Permit.Account, delay)
	p.makeDueIfRecovered(ctx, it.Permit.Account)
	return nil
}

// rememberDelivery remembers a delivery that is due after a delay.
func (p *postponer) rememberDelivery(id string, account admission.Account, delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.opts.Now()
	if len(p.remembered) >= maxRemembered && !now.Before(p.nextPurge) {
		p.nextPurge = now.Add(purgeInterval)
		maps.DeleteFunc(p.remembered, func(_ string, r rememberedDelivery) bool { return now.After(r.dueAt) })
	}
	if len(p.remembered) < maxRemembered {
		if p.remembered == nil {
			p.remembered = make(map[string]rememberedDelivery)
		}
		p.remembered[id] = rememberedDelivery{account, now.Add(delay)}
	}
}

// rememberFailed remembers a delivery that has failed together with its destination. When that recovers, the delivery does not wait
// for its schedule, because later ones with its ordering key wait for it. Only the first attempts are early: a destination that
// often fails and recovers must not use up the schedule.
func (p *postponer) rememberFailed(it *Item, delay time.Duration) {
	if it.Record.AttemptCount > min(len(p.opts.Schedule.Delays)/3, maxEarlyRetries) {
		return
	}
	id := it.Delivery.ID
	if it.Claim != nil {
		id = it.Claim.ID
	}
	p.rememberDelivery(id, it.Permit.Account, delay)
}

// forgetDelivery must be called when a delivery was claimed, because it no longer waits.
func (p *postponer) forgetDelivery(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.remembered, id)
}

// makeDue makes remembered deliveries of this node due if the destination has recovered for their accounts. It is called after
// each success, so it usually only reads two flags. After an error, the deliveries wait until their delay ends.
func (p *postponer) makeDue(ctx context.Context) {
	if p.admission.TakeRecovered() {
		p.isMakingDue.Store(true)
	}
	if !p.isMakingDue.Load() {
		return
	}
	ids := p.takeRemembered()
	if len(ids) == 0 {
		return
	}
	if _, err := p.opts.Store.Retries.MakeDueIDs(ctx, p.opts.Name, ids); err != nil {
		p.opts.Log.Warn("deliveries were not made due after the destination recovered, so they wait for their schedule", "error", err)
		return
	}
	p.opts.Wake(0)
}

// makeDueIfRecovered is called after a delivery was postponed. If the destination recovered before the delivery was remembered, no
// success makes it due.
func (p *postponer) makeDueIfRecovered(ctx context.Context, account admission.Account) {
	if p.admission.WorksFor(account) {
		p.isMakingDue.Store(true)
		p.makeDue(ctx)
	}
}

// takeRemembered returns the next deliveries to make due, at most maxMadeDue.
func (p *postponer) takeRemembered() (ids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, r := range p.remembered {
		if len(ids) == maxMadeDue {
			return ids
		}
		if !p.admission.IsFailing(r.account) {
			ids = append(ids, id)
			delete(p.remembered, id)
		}
	}
	p.isMakingDue.Store(false)
	if len(p.remembered) == 0 {
		p.remembered = nil // frees its memory
	}
	return ids
}

// postponedDelay returns the time by which a delivery is postponed. It varies by a fifth in both directions.
func (p *postponer) postponedDelay() time.Duration {
	delay := time.Duration(p.admission.Depth()) * time.Minute / postponedPerMinute
	delay = min(max(delay, minPostponedDelay), maxPostponedDelay)
	return time.Duration(float64(delay) * (1 - jitter + 2*jitter*p.opts.Random()))
}

func (p *postponer) logPostponed(it *Item) {
	if suppressed, ok := p.warnings.Allow(); ok {
		p.opts.Log.Warn("delivery was postponed, because the destination fails for its account", "delivery_id", it.Delivery.ID,
			"account_id", it.Delivery.Notifications[0].Account, "suppressed_lines", suppressed)
	}
}

// searchQueue lets the deliveries of failing accounts be postponed if the queue has others, while the destination fails. It is
// called after each failure and each postponed delivery, when their outcome is stored.
func (p *postponer) searchQueue(ctx context.Context) {
	if !p.opts.canPostpone() {
		return
	}
	accounts, ok := p.admission.FailedAccounts()
	if !ok || !p.searching.TryLock() {
		return
	}
	defer p.searching.Unlock()
	ctx, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	others, err := p.opts.HasOtherAccounts(ctx, accounts)
	if err == nil && others { // otherwise the next failure searches again
		p.admission.AllowPostponing()
	}
}

// accountOf returns the account of all notifications of a delivery. It is unknown if they may have several.
func accountOf(it *Item) admission.Account {
	if it.Record != nil && it.Record.CountsOtherAccounts() {
		return admission.Account{}
	}
	account := it.Delivery.Notifications[0].Account
	for i := range it.Delivery.Notifications {
		if it.Delivery.Notifications[i].Account != account {
			return admission.Account{}
		}
	}
	return admission.NewAccount(account)
}
