package pipeline

import (
	"context"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/internal/logsample"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/admission"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

const (
	// postponedDelay is the delay of a delivery that is postponed.
	postponedDelay = time.Minute
	// suspectCheckTimeout limits the search for other accounts in a queue.
	suspectCheckTimeout = time.Second
)

// postponer schedules fresh deliveries of an account without an attempt, if the destination fails for that account and the queue
// has deliveries of others.
type postponer struct {
	opts      *Options
	admission *admission.Admission
	warnings  *logsample.Limiter
	checking  sync.Mutex
}

// isDisabled reports whether the sink has no fresh attempts that could be postponed.
func (p *postponer) isDisabled() bool {
	return p.opts.HasOtherAccounts == nil || p.opts.usesBatches() || p.opts.usesDigests()
}

// postpone schedules a fresh delivery.
func (p *postponer) postpone(ctx context.Context, it *Item) error {
	it.Record = store.NewRecord(it.Delivery, time.Time{})
	if err := it.Origin.Retry(ctx, it, postponedDelay); err != nil {
		return err
	}
	p.checkSuspect(ctx)
	return nil
}

// checkSuspect lets the deliveries of a suspect account be postponed if the queue has others. It is called after each failure
// and each postponed delivery, when their outcome is stored.
func (p *postponer) checkSuspect(ctx context.Context) {
	if p.isDisabled() {
		return
	}
	account, ok := p.admission.FindSuspect()
	if !ok || !p.checking.TryLock() {
		return
	}
	defer p.checking.Unlock()
	ctx, cancel := context.WithTimeout(ctx, suspectCheckTimeout)
	defer cancel()
	others, err := p.opts.HasOtherAccounts(ctx, account.ID)
	if err != nil || !others { // the next failure checks it again
		return
	}
	p.admission.AllowPostponing(account)
	if _, ok := p.warnings.Allow(); ok {
		p.opts.Log.Warn("destination of the sink fails for an account, whose deliveries are postponed", "account_id", account.ID)
	}
}

// accountOf returns the account of all notifications of a delivery. It is unknown if they have several.
func accountOf(d *relay.Delivery) admission.Account {
	account := d.Notifications[0].Account
	for i := range d.Notifications {
		if d.Notifications[i].Account != account {
			return admission.Account{}
		}
	}
	return admission.NewAccount(account)
}
