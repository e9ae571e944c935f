package pipeline

import (
	"context"
	"errors"
	"time"

	"github.com/hubrelay/hubrelay/internal/logsample"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/admission"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/attempt"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// postponedDelay is the delay of a delivery that is postponed.
const postponedDelay = time.Minute

// admitStage waits until an attempt may start, and ends the permit after the attempt.
type admitStage struct {
	next      Handler
	opts      *Options
	admission *admission.Admission
	warnings  *logsample.Limiter
}

func (s *admitStage) Handle(ctx context.Context, it *Item) error {
	it.Permit.Account, it.Permit.CanPostpone = accountOf(&it.Delivery), it.Claim == nil
	switch {
	case !it.Permit.IsComplete():
		err := s.admission.Acquire(ctx, &it.Permit)
		if errors.Is(err, admission.ErrPostponed) {
			s.checkSuspect(ctx)
			it.Record = store.NewRecord(it.Delivery, time.Time{})
			return it.Origin.Retry(ctx, it, postponedDelay)
		}
		if err != nil {
			return err
		}
	case !it.Permit.Enter():
		return errNotAdmitted
	}
	err := s.next.Handle(ctx, it)
	it.Permit.Done(ctx, countsAttempt(ctx, err), err)
	if err != nil {
		s.checkSuspect(ctx)
	}
	return err
}

// checkSuspect allows that deliveries of a suspect account are postponed if the queue has deliveries of others.
func (s *admitStage) checkSuspect(ctx context.Context) {
	account, ok := s.admission.FindSuspect()
	if !ok || s.opts.HasOtherAccounts == nil {
		return
	}
	others, err := s.opts.HasOtherAccounts(ctx, account)
	if err != nil || !others { // the next failed attempt checks it again
		return
	}
	s.admission.AllowPostponing(account)
	if _, ok := s.warnings.Allow(); ok {
		s.opts.Log.Warn("destination of the sink fails for one account, its deliveries are scheduled and others continue",
			"account_id", account)
	}
}

// accountOf returns the account of all notifications of a delivery, or an empty string if they have none in common.
func accountOf(d *relay.Delivery) string {
	account := d.Notifications[0].Account
	for i := range d.Notifications {
		if d.Notifications[i].Account != account {
			return ""
		}
	}
	return account
}

// countsAttempt reports whether the outcome of an attempt says something about the destination. One that this node has
// aborted does not.
func countsAttempt(ctx context.Context, err error) bool {
	if err == nil {
		return true
	}
	outcome, _ := relay.Classify(err)
	return outcome != relay.OutcomeRetry || ctx.Err() == nil
}

// attemptStage makes one attempt.
type attemptStage struct {
	opts      *Options
	runner    *attempt.Runner
	stats     *statsBuffer
	admission *admission.Admission
}

func (s *attemptStage) Handle(ctx context.Context, it *Item) error {
	o := s.opts
	it.StartedAt = o.Now()
	status, err := s.runner.Run(ctx, o.formatForSink(it.Delivery))
	it.Status = status
	endedAt := o.Now()
	it.Duration = endedAt.Sub(it.StartedAt)
	if countsAttempt(ctx, err) {
		failure := ""
		if err != nil {
			failure = attempt.FailureReason(err)
		}
		o.Observer.Attempted(o.Name, it.Delivery.Attempt, failure, it.Duration)
		s.stats.recordAttempt(it.Delivery.Attempt, it.Duration, attemptFailure{err, endedAt})
	}
	if o.TakeExtraRequests != nil {
		s.admission.Charge(ctx, o.TakeExtraRequests())
	}
	return err
}
