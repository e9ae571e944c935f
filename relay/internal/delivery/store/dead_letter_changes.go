package store

import (
	"context"
	_ "embed"
	"slices"
	"time"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// ChangeResult is the result of replaying or dropping dead letters.
type ChangeResult struct {
	// Done is the number of dead letters that were replayed or dropped.
	Done int
	// Unchanged are the others: IDs that are not, or no longer, dead letters, and dead letters that cannot be replayed.
	Unchanged []UnchangedDeadLetter
	// Next continues a change that ended at its Limit or after [maxUnchanged]. It is empty when all is done.
	Next string
}

// UnchangedDeadLetter is a dead letter that was neither replayed nor dropped. Its status is [UnchangedMissing] or
// [UnchangedUnreadable].
type UnchangedDeadLetter struct {
	ID     string
	Status ChangeStatus
}

// maxUnchanged limits the unchanged dead letters that one result lists.
const maxUnchanged = 1000

var (
	//go:embed scripts/deadletter_replay.lua
	replayDeadLettersSource string
	//go:embed scripts/deadletter_drop.lua
	dropDeadLettersSource string

	replayDeadLettersScript = redisconn.NewScript(retryQueueSource + deadLettersSource + replayDeadLettersSource)
	dropDeadLettersScript   = redisconn.NewScript(deadLettersSource + dropDeadLettersSource)
)

// ReplayOptions are the settings of the sink whose dead letters are replayed.
type ReplayOptions struct {
	Ordering Ordering
	// MaxBacklog limits the scheduled deliveries. 0 means no limit.
	MaxBacklog int64
	// MaxBytes limits the memory of the scheduled deliveries. Up to 100 dead letters may exceed it. 0 means no limit.
	MaxBytes int64
}

// Replay moves dead letters to the retry queue. They are due at once, keep their history and start the retry schedule
// again. One script moves each, so it is never in both places or in none. If the queue is full, Replay returns
// [ErrFull], and the remaining dead letters stay.
func (d *DeadLetters) Replay(ctx context.Context, sink string, ids []string, o ReplayOptions) (ChangeResult, error) {
	return d.changeByID(ctx, sink, ids, d.replayChange(o))
}

// ReplaySelected replays the selected dead letters that exist when it is called.
func (d *DeadLetters) ReplaySelected(
	ctx context.Context, sink string, sel Selection, o ReplayOptions,
) (ChangeResult, error) {
	return d.changeSelected(ctx, sink, sel, d.replayChange(o))
}

// Drop deletes dead letters.
func (d *DeadLetters) Drop(ctx context.Context, sink string, ids []string) (ChangeResult, error) {
	return d.changeByID(ctx, sink, ids, d.dropChange)
}

// DropSelected deletes the selected dead letters that exist when it is called.
func (d *DeadLetters) DropSelected(ctx context.Context, sink string, sel Selection) (ChangeResult, error) {
	return d.changeSelected(ctx, sink, sel, d.dropChange)
}

// deadLetterRef locates a dead letter.
type deadLetterRef struct{ id, entryID string }

// change applies to at most scanPage dead letters. It returns the status of each, or of fewer and an error.
type change func(ctx context.Context, sink string, refs []deadLetterRef) ([]ChangeStatus, error)

func changeArgs(refs []deadLetterRef, args ...any) []any {
	for _, r := range refs {
		args = append(args, r.id, r.entryID)
	}
	return args
}

func (d *DeadLetters) replayChange(o ReplayOptions) change {
	return func(ctx context.Context, sink string, refs []deadLetterRef) ([]ChangeStatus, error) {
		if err := d.CheckBytes(ctx, sink, o.MaxBytes); err != nil {
			return nil, err
		}
		keys := d.retryKeys(sink, DeadLettersKey(d.keys, sink), DeadLetterIndexKey(d.keys, sink))
		args := changeArgs(refs, o.MaxBacklog, o.Ordering.defaultKeyPrefix())
		statuses, err := runChange(ctx, d.client, replayDeadLettersScript, keys, args)
		if err != nil {
			return nil, redisconn.WrapError("replay dead letters", err)
		}
		if err = d.signalChange(ctx); err == nil && len(statuses) < len(refs) {
			err = ErrFull
		}
		return statuses, err
	}
}

func (d *DeadLetters) dropChange(ctx context.Context, sink string, refs []deadLetterRef) ([]ChangeStatus, error) {
	keys := []string{DeadLettersKey(d.keys, sink), DeadLetterIndexKey(d.keys, sink)}
	statuses, err := runChange(ctx, d.client, dropDeadLettersScript, keys, changeArgs(refs))
	return statuses, redisconn.WrapError("drop dead letters", err)
}

// changeByID returns the result up to the error.
func (d *DeadLetters) changeByID(ctx context.Context, sink string, ids []string, do change) (ChangeResult, error) {
	var result ChangeResult
	for page := range slices.Chunk(ids, scanPage) {
		entryIDs, err := d.entryIDs(ctx, sink, page)
		if err != nil {
			return result, err
		}
		var refs []deadLetterRef
		for i, id := range page {
			if entryIDs[i] == "" {
				result.Unchanged = append(result.Unchanged, UnchangedDeadLetter{id, UnchangedMissing})
			} else {
				refs = append(refs, deadLetterRef{id, entryIDs[i]})
			}
		}
		// An ordered sink gets replayed deliveries in the order in which they became dead letters, which was the log's.
		slices.SortFunc(refs, func(a, b deadLetterRef) int { return streamid.Compare(a.entryID, b.entryID) })
		if err := applyChange(ctx, sink, refs, do, &result); err != nil {
			return result, err
		}
	}
	return result, nil
}

func applyChange(ctx context.Context, sink string, refs []deadLetterRef, do change, result *ChangeResult) error {
	if len(refs) == 0 {
		return nil
	}
	statuses, err := do(ctx, sink, refs)
	for i, status := range statuses {
		if status == Changed {
			result.Done++
		} else {
			result.Unchanged = append(result.Unchanged, UnchangedDeadLetter{refs[i].id, status})
		}
	}
	return err
}

// changeSelected stops at the newest dead letter that exists when it starts, so it does not process a delivery twice
// that fails again.
func (d *DeadLetters) changeSelected(
	ctx context.Context, sink string, sel Selection, do change,
) (ChangeResult, error) {
	var result ChangeResult
	f, err := sel.compile()
	if err != nil {
		return result, err
	}
	if f.last == "+" {
		newest, err := d.client.XRevRangeN(ctx, DeadLettersKey(d.keys, sink), "+", "-", 1).Result()
		if err != nil {
			return result, redisconn.WrapError("find the newest dead letter", err)
		}
		if len(newest) == 0 {
			return result, nil
		}
		f.last = newest[0].ID
	}
	for {
		start := time.Now()
		scanned, more, err := d.readPage(ctx, sink, &f)
		if err != nil {
			return result, err
		}
		var refs []deadLetterRef
		full := false
		for i := range scanned {
			f.after = "(" + scanned[i].entryID
			if f.matches(&scanned[i]) {
				refs = append(refs, deadLetterRef{scanned[i].ID, scanned[i].entryID})
			}
			if full = sel.Limit > 0 && result.Done+len(refs) >= sel.Limit; full {
				break
			}
		}
		if err := applyChange(ctx, sink, refs, do, &result); err != nil {
			return result, err
		}
		if full || more && len(result.Unchanged) >= maxUnchanged {
			result.Next = f.after[1:] + "~" + f.last
			return result, nil
		}
		if !more {
			return result, nil
		}
		if err := Yield(ctx, time.Since(start)); err != nil {
			return result, err
		}
	}
}
