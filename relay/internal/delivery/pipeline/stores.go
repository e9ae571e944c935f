package pipeline

import (
	"context"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// The parts of package store that the stages use.
type (
	retryStore interface {
		Schedule(ctx context.Context, sink string, d store.Scheduled, wait time.Duration, arrivedAt time.Time) (
			depth int64, err error)
		Reschedule(ctx context.Context, c store.Claim, body string, wait time.Duration) (bool, error)
		Split(ctx context.Context, c store.Claim, parts []store.Scheduled) (bool, error)
		Complete(ctx context.Context, c store.Claim) (nextDue bool, err error)
	}
	deadLetterStore interface {
		Add(ctx context.Context, c store.Claim, maxBacklog int64, e store.DeadLetterEntry) (
			dropped int64, held bool, err error)
	}
	digestStore interface {
		Add(ctx context.Context, sink string, e store.DigestEntry) (store.AddedToDigest, error)
		Seal(ctx context.Context, sink string, groups []string) error
	}
	batchStore interface {
		Seal(ctx context.Context, sink, id string, items []store.BatchItem, lease time.Duration, arrivedAt time.Time) (
			store.SealedBatch, error)
	}
	orderStore interface {
		Hold(ctx context.Context, sink string, d store.Scheduled, arrivedAt time.Time) (
			depth int64, held bool, err error)
		Keys(ctx context.Context, sink string) ([]string, error)
	}
	stateStore interface {
		Get(ctx context.Context, sink string) (store.SinkState, error)
		Disable(ctx context.Context, sink, reason, fingerprint string, since time.Time) (store.DisableResult, error)
		Enable(ctx context.Context, sink, fingerprint string) (bool, error)
	}
	failureStore interface {
		Record(ctx context.Context, sink string) (time.Duration, error)
		Clear(ctx context.Context, sink string) error
	}
	statsStore interface {
		Add(ctx context.Context, deltas []store.StatsDelta, failed func(i int)) error
	}
)
