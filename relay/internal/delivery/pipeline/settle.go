package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hubrelay/hubrelay/internal/logsample"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/admission"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/notice"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/history"
)

// settleStage decides what follows from an attempt, and stores it at the origin of the item. The permit has ended by
// then, so a slow write occupies no slot.
type settleStage struct {
	next        Handler
	opts        *Options
	state       *sinkState
	failures    *failureTracker
	deadLetters *notice.DeadLetters
	postponer   *postponer
	warnings    *logsample.Limiter
}

func (s *settleStage) Handle(ctx context.Context, it *Item) error {
	err := s.next.Handle(ctx, it)
	switch {
	case errors.Is(err, errTooOld):
		return s.storeDeadLetter(ctx, it, relay.OutcomeRetry, err)
	case it.StartedAt.IsZero():
		return err // there was no attempt
	case s.opts.isErased(it):
		return nil // the attempt leaves no trace
	}
	outcome, retryAfter := relay.Classify(err)
	if outcome == relay.OutcomeRetry && ctx.Err() != nil {
		return ctx.Err() // this node stops; the sink has not failed
	}
	if relay.IsPostponed(err) {
		return s.postponeDelivery(ctx, it, retryAfter, err)
	}
	if outcome != relay.OutcomeDelivered {
		s.addAttempt(it, err)
	}
	err = s.settleAttempt(ctx, it, outcome, retryAfter, err)
	switch outcome {
	case relay.OutcomeRetry:
		s.postponer.searchQueue(ctx)
	case relay.OutcomeDelivered:
		s.postponer.makeDue(ctx)
	}
	return err
}

// settleAttempt settles an attempt and records it. Its variables must not enlarge the stack during the attempt.
//
//go:noinline
func (s *settleStage) settleAttempt(
	ctx context.Context, it *Item, outcome relay.Outcome, retryAfter time.Duration, err error,
) error {
	a := history.Attempt{
		Sink: s.opts.Name, Number: it.Delivery.Attempt, Time: it.StartedAt, Duration: it.Duration, Outcome: outcome,
		Status: it.Status, WasScheduled: it.Claim != nil,
	}
	settled := s.settle(ctx, it, &a, retryAfter, err)
	s.recordAttempt(it, &a, err)
	return settled
}

// settle stores what follows from an attempt, and describes it in a.
func (s *settleStage) settle(
	ctx context.Context, it *Item, a *history.Attempt, retryAfter time.Duration, err error,
) error {
	switch a.Outcome {
	case relay.OutcomeDelivered:
		s.failures.recordSuccess(ctx)
		a.State, it.IsDelivered = history.StateDelivered, true
		return it.Origin.Complete(ctx, it)
	case relay.OutcomeGone:
		s.state.disable(ctx, err)
		return ErrDisabled
	case relay.OutcomeRetry:
		if err := s.recordFailure(ctx, err); err != nil {
			return err
		}
		wait, more := s.nextDelay(it, retryAfter)
		if more && isSplitEarly(it, retryAfter, err) {
			it.Record.AttemptCount-- // the parts are due at once, and then have the delays that the whole would have had
		} else if more {
			scheduled := s.scheduleRetry(ctx, it, a, wait, err)
			if scheduled == nil && retryAfter == 0 && admission.IndicatesOutage(err) {
				s.postponer.rememberFailed(it, wait)
			}
			return scheduled
		}
	}
	if claims, ok := it.Origin.(*claimOrigin); ok {
		if parts := splitFailed(it.Record, a.Outcome); parts != nil {
			a.State, a.NextAttempt = history.StateRetrying, s.opts.Now()
			return s.splitDelivery(ctx, claims, it, parts, err)
		}
	}
	if err := s.storeDeadLetter(ctx, it, a.Outcome, err); err != nil {
		return err
	}
	a.State = history.StateDead
	return nil
}

// splitAttempts is the number of attempts after which a batch or digest with several accounts is split. It is not split at once,
// because a destination that rejects everything for a short time would then get one request for each account.
const splitAttempts = 2

// isSplitEarly reports whether a failed batch or digest is split by account before its last attempt. A destination that responds may
// reject the notifications of one account only, so the others need not wait for many retries.
func isSplitEarly(it *Item, retryAfter time.Duration, err error) bool {
	_, isClaimed := it.Origin.(*claimOrigin)
	return isClaimed && it.Record.AttemptCount >= splitAttempts && it.Record.HasSeveralAccounts() && it.Record.CanSplit() &&
		retryAfter == 0 && !admission.IndicatesOutage(err)
}

// splitFailed returns the parts of a batch or digest that get further attempts, or nil if the delivery becomes a dead letter.
func splitFailed(r *store.Record, outcome relay.Outcome) []*store.Record {
	switch {
	case outcome == relay.OutcomePermanent && r.CanSplit(): // perhaps because of one notification
		return r.Halves()
	case outcome == relay.OutcomeRetry && r.HasSeveralAccounts() && r.CanSplit(): // perhaps because of the notifications of one account
		return r.SplitByAccount()
	}
	return nil
}

// recordFailure records a failure of the sink. If the sink has failed for too long, it disables the sink and returns ErrDisabled.
func (s *settleStage) recordFailure(ctx context.Context, cause error) error {
	if tooLong := s.failures.recordFailure(ctx, cause); tooLong != nil {
		s.state.disable(ctx, tooLong)
		return ErrDisabled
	}
	return nil
}

// minUnattemptedDelay is the minimum delay of a delivery that its sink could not attempt.
const minUnattemptedDelay = time.Second

// postponeDelivery schedules a delivery that its sink could not attempt. It is a failure of the sink, but does not count as an
// attempt.
func (s *settleStage) postponeDelivery(ctx context.Context, it *Item, minDelay time.Duration, cause error) error {
	if err := s.recordFailure(ctx, cause); err != nil {
		return err
	}
	s.startRecord(it)
	if s.opts.isTooOld(it.Record) {
		return s.storeDeadLetter(ctx, it, relay.OutcomeRetry, fmt.Errorf("%w: %w", errTooOld, cause))
	}
	wait := min(max(minDelay, minUnattemptedDelay), maxRetryAfter)
	if err := it.Origin.Retry(ctx, it, wait); err != nil {
		return err
	}
	s.opts.Wake(wait)
	if suppressed, ok := s.warnings.Allow(); ok {
		s.opts.Log.Warn("delivery postponed", "delivery_id", it.Delivery.ID, "topic", it.Record.Notifications[0].Topic,
			"error", cause, "next_attempt_at", s.opts.Now().Add(wait).UTC().Round(time.Second), "suppressed_lines", suppressed)
	}
	return nil
}

// recordAttempt adds the attempt to the history of each notification.
func (s *settleStage) recordAttempt(it *Item, a *history.Attempt, err error) {
	if s.opts.History == nil || it.Record != nil && it.Record.IsStandIn { // a stand-in is no event
		return
	}
	if err != nil {
		a.Error = err.Error()
		var response *relay.ResponseError
		if errors.As(err, &response) {
			a.Status = response.Status
		}
	}
	list, id := it.Delivery.Notifications, it.Delivery.ID
	if it.Claim != nil && a.State != history.StateDead { // a dead letter has the ID that receivers see
		id = it.Claim.ID
	}
	a.Delivery, _ = history.ParseEventID(id)
	for i := range list {
		s.opts.History.RecordAttempt(&list[i], a)
	}
}

// addAttempt appends the attempt to the history, which starts with the first failure.
func (s *settleStage) addAttempt(it *Item, err error) {
	s.startRecord(it)
	it.Record.AddAttempt(store.NewAttempt(it.StartedAt, it.Duration, err))
}

// startRecord creates the record of a fresh delivery, and starts the age of a replayed one.
func (s *settleStage) startRecord(it *Item) {
	if it.Record == nil {
		it.Record = store.NewRecord(it.Delivery, it.StartedAt)
	}
	if it.Record.First.IsZero() {
		it.Record.First = it.StartedAt.UTC().Round(time.Millisecond)
	}
}

func (s *settleStage) nextDelay(it *Item, retryAfter time.Duration) (time.Duration, bool) {
	age := time.Duration(0)
	if it.Claim != nil {
		age = s.opts.Now().Sub(it.Record.First)
	}
	return s.opts.Schedule.Next(it.Record.AttemptCount, age, retryAfter, s.opts.Random())
}

func (s *settleStage) scheduleRetry(
	ctx context.Context, it *Item, a *history.Attempt, wait time.Duration, cause error,
) error {
	if err := it.Origin.Retry(ctx, it, wait); err != nil {
		return err
	}
	a.State, a.NextAttempt = history.StateRetrying, s.opts.Now().Add(wait)
	s.opts.Wake(wait)
	if suppressed, ok := s.warnings.Allow(); ok {
		s.opts.Log.Warn("delivery attempt failed", "delivery_id", it.Delivery.ID,
			"topic", it.Record.Notifications[0].Topic, "attempt", it.Record.AttemptCount, "error", cause,
			"next_attempt_at", s.opts.Now().Add(wait).UTC().Round(time.Second), "suppressed_lines", suppressed)
	}
	return nil
}

// splitDelivery continues with parts of a rejected batch or digest. Only the notifications that cause the rejection become dead
// letters, because the others may belong to other accounts.
func (s *settleStage) splitDelivery(
	ctx context.Context, o *claimOrigin, it *Item, parts []*store.Record, cause error,
) error {
	if err := o.splitDelivery(ctx, it, parts); err != nil {
		return err
	}
	if suppressed, ok := s.warnings.Allow(); ok {
		s.opts.Log.Warn("failed delivery was split", "delivery_id", it.Delivery.ID, "event_count",
			len(it.Record.Notifications), "error", cause, "suppressed_lines", suppressed)
	}
	return nil
}

func (s *settleStage) storeDeadLetter(ctx context.Context, it *Item, outcome relay.Outcome, cause error) error {
	reason := ReasonExhausted
	if outcome == relay.OutcomePermanent {
		reason = ReasonPermanent
	}
	if err := it.Origin.DeadLetter(ctx, it, reason+": "+cause.Error()); err != nil {
		return err
	}
	s.opts.Observer.DeadLettered(s.opts.Name, reason)
	if suppressed, ok := s.warnings.Allow(); ok {
		s.opts.Log.Warn("delivery became a dead letter", "delivery_id", it.Delivery.ID,
			"topic", it.Record.Notifications[0].Topic, "attempt", it.Record.AttemptCount, "reason", reason,
			"error", cause, "suppressed_lines", suppressed)
	}
	s.deadLetters.Add(ctx, it.Delivery.ID, reason, it.Record, cause)
	return nil
}
