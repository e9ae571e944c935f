package delivery

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/lease"
)

// deadLetterInterval is the time between two checks whether dead letters must be dropped.
const deadLetterInterval = time.Second

// limitDeadLetters drops dead letters while Redis is nearly full, until ctx ends. Without it, a destination that rejects all
// events would stop publishing for all accounts. One node does this, because several would drop too many.
func (s *Service) limitDeadLetters(ctx context.Context) error {
	err := s.opts.Leases.Lease("deadletters", lease.DefaultTTL).Run(ctx, s.limitDeadLettersAsLeader)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (s *Service) limitDeadLettersAsLeader(ctx context.Context) error {
	for await.Duration(ctx, deadLetterInterval) {
		if err := s.dropExcessDeadLetters(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("dead letters could not be dropped from a full redis", "error", err)
		}
	}
	return nil
}

// dropExcessDeadLetters drops the oldest dead letters of each sink that has more than its part of the limit, in steps until Redis
// has room or no sink has more.
func (s *Service) dropExcessDeadLetters(ctx context.Context) error {
	for {
		limit, sinks := s.opts.Memory.DeadLetterLimit(), s.sinks.list()
		if limit == 0 || len(sinks) == 0 {
			return nil
		}
		again, err := s.dropDeadLettersAbove(ctx, limit/int64(len(sinks)), sinks)
		if !again || err != nil {
			return err
		}
		s.opts.Memory.Measure(ctx)
	}
}

// dropDeadLettersAbove drops half of the dead letters of each sink that exceed its part in bytes, because that may be enough. It
// reports whether any were dropped.
func (s *Service) dropDeadLettersAbove(ctx context.Context, part int64, sinks []*openSink) (dropped bool, err error) {
	sizes, err := s.opts.Deliveries.DeadLetters.Sizes(ctx, sinkNames(sinks))
	if err != nil {
		return false, err
	}
	for i, size := range sizes {
		if size.Bytes <= part {
			continue
		}
		excess := float64(size.Count) * float64(size.Bytes-part) / float64(size.Bytes)
		n, dropErr := sinks[i].pipeline.DropOldestDeadLetters(ctx, int(math.Ceil(excess/2)))
		err = errors.Join(err, dropErr)
		dropped = dropped || n > 0
	}
	return dropped, err
}

// ListDeadLetters returns a page of dead letters.
func (s *Service) ListDeadLetters(ctx context.Context, name string, sel store.Selection) (store.Page, error) {
	if err := s.requireKnown(ctx, name); err != nil {
		return store.Page{}, err
	}
	return s.opts.Deliveries.DeadLetters.List(ctx, name, sel)
}

// ShowDeadLetter returns a dead letter with its notifications and attempts.
func (s *Service) ShowDeadLetter(ctx context.Context, name, id string) (*store.DeadLetterContent, error) {
	if err := s.requireKnown(ctx, name); err != nil {
		return nil, err
	}
	return s.opts.Deliveries.DeadLetters.Get(ctx, name, id)
}

// ReplayDeadLetters schedules dead letters for delivery.
func (s *Service) ReplayDeadLetters(ctx context.Context, name string, ids []string) (store.ChangeResult, error) {
	sink, err := s.requireConfigured(ctx, name)
	if err != nil {
		return store.ChangeResult{}, err
	}
	return s.opts.Deliveries.DeadLetters.Replay(ctx, name, compactIDs(ids), sink.replayOptions())
}

// ReplaySelectedDeadLetters schedules all selected dead letters for delivery.
func (s *Service) ReplaySelectedDeadLetters(
	ctx context.Context, name string, sel store.Selection,
) (store.ChangeResult, error) {
	sink, err := s.requireConfigured(ctx, name)
	if err != nil {
		return store.ChangeResult{}, err
	}
	return s.opts.Deliveries.DeadLetters.ReplaySelected(ctx, name, sel, sink.replayOptions())
}

// DropDeadLetters deletes dead letters.
func (s *Service) DropDeadLetters(ctx context.Context, name string, ids []string) (store.ChangeResult, error) {
	if err := s.requireKnown(ctx, name); err != nil {
		return store.ChangeResult{}, err
	}
	return s.opts.Deliveries.DeadLetters.Drop(ctx, name, compactIDs(ids))
}

// DropSelectedDeadLetters deletes all selected dead letters.
func (s *Service) DropSelectedDeadLetters(
	ctx context.Context, name string, sel store.Selection,
) (store.ChangeResult, error) {
	if err := s.requireKnown(ctx, name); err != nil {
		return store.ChangeResult{}, err
	}
	return s.opts.Deliveries.DeadLetters.DropSelected(ctx, name, sel)
}
