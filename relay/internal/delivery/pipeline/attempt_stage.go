package pipeline

import (
	"context"
	"errors"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/admission"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/attempt"
)

// admitStage waits until an attempt may start, and ends the permit after the attempt.
type admitStage struct {
	next      Handler
	admission *admission.Admission
	postponer *postponer
}

func (s *admitStage) Handle(ctx context.Context, it *Item) error {
	it.Permit.Account, it.Permit.CanPostpone = accountOf(it), it.Claim == nil && s.postponer.opts.canPostpone()
	switch {
	case !it.Permit.IsComplete():
		err := s.admission.Acquire(ctx, &it.Permit)
		if errors.Is(err, admission.ErrPostponed) {
			return s.postponer.postpone(ctx, it)
		}
		if err != nil {
			return err
		}
		if s.postponer.opts.isErased(it) { // while it waited
			it.Permit.Cancel()
			return nil
		}
	case !it.Permit.Enter():
		if s.admission.IsFailing(it.Permit.Account) {
			it.Permit.Cancel()
			return s.postponer.postponeRetry(ctx, it)
		}
		return errNotAdmitted
	}
	err := s.next.Handle(ctx, it)
	it.Permit.Done(ctx, countsAttempt(ctx, err), err)
	return err
}

// countsAttempt reports whether the outcome of an attempt says something about the destination. An attempt that this node has
// aborted does not, nor one that sent nothing.
func countsAttempt(ctx context.Context, err error) bool {
	if err == nil {
		return true
	}
	outcome, _ := relay.Classify(err)
	return outcome != relay.OutcomeRetry || ctx.Err() == nil && !relay.IsPostponed(err)
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
	switch {
	case relay.IsPostponed(err) && ctx.Err() == nil: // the sink sent nothing
		s.stats.recordFailure(attemptFailure{err, endedAt})
	case countsAttempt(ctx, err):
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
