package delivery

import (
	"context"

	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

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
	return s.opts.Deliveries.DeadLetters.Replay(ctx, name, ids, sink.replayOptions())
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
	return s.opts.Deliveries.DeadLetters.Drop(ctx, name, ids)
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
