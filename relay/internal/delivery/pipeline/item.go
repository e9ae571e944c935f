package pipeline

import (
	"context"
	"errors"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/admission"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// The errors of a [Handler] that did not attempt an item, or could not settle it.
var (
	// ErrDisabled reports that a delivery keeps waiting, because its sink is disabled or paused.
	ErrDisabled = admission.ErrDisabled
	// errNotLeader reports that another node delivers an ordered sink.
	errNotLeader = errors.New("another node is the leader of this ordered sink")
	// errNotAdmitted reports that a retry may no longer start, because the destination failed or asked for a pause
	// since the retry was claimed.
	errNotAdmitted = errors.New("the destination takes no retry now")
	// errTooOld reports that a delivery has reached its maximum age while it was postponed.
	errTooOld = errors.New("it reached retry.max_age while it was postponed")
	// errUnsettled reports that the outcome of a claimed delivery was not stored. The claim was lost or expires.
	errUnsettled = errors.New("the outcome was not stored")
)

// Handler processes an item. On nil, its outcome is stored, or it was released for another attempt. On an error, its
// origin delivers it again.
type Handler interface {
	Handle(ctx context.Context, it *Item) error
}

// Item is a delivery on its way through the stages.
type Item struct {
	Delivery relay.Delivery
	Origin   Origin
	// Claim is nil for a fresh delivery.
	Claim *store.Claim
	// Record is the history of a claimed delivery. For a fresh one it is nil until the first attempt has failed.
	Record *store.Record
	// Permit may be empty, partial or complete. A stage that stops an item cancels it.
	Permit admission.Permit

	// StartedAt, Duration and Status describe the attempt. StartedAt is zero without one. Status is the status code of a
	// successful attempt, or 0.
	StartedAt time.Time
	Duration  time.Duration
	Status    int
	// IsDelivered is set after a successful attempt.
	IsDelivered bool
}

// isReplayed reports whether the item is a claimed notification that was never attempted. Replays of the log schedule
// them, and they can still become a part of a digest or batch.
func (it *Item) isReplayed() bool { return it.Claim != nil && it.Record.IsSingleUnattempted() }

// isErased reports whether an item is a fresh delivery whose account was erased since it was read.
func (o *Options) isErased(it *Item) bool {
	return it.Claim == nil && o.areErased(it.Delivery.Notifications)
}

func (o *Options) areErased(list []relay.Notification) bool {
	for i := range list {
		if !o.IsErased(&list[i]) {
			return false
		}
	}
	return len(list) > 0
}

// Origin stores the outcome of an item where the item came from. An ordered sink has one Origin per item, which also
// blocks the key. Otherwise one serves all items of a sink.
type Origin interface {
	// Complete discards a delivered item.
	Complete(ctx context.Context, it *Item) error
	// Retry schedules the next attempt. It stores the record.
	Retry(ctx context.Context, it *Item, after time.Duration) error
	// DeadLetter stores a dead letter and discards the item.
	DeadLetter(ctx context.Context, it *Item, reason string) error
	// Release makes an item without an outcome available again.
	Release(ctx context.Context, it *Item, after time.Duration) error
}
