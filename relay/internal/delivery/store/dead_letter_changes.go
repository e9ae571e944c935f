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
	// Missing is the number of IDs that are not, or no longer, dead letters.
	Missing int
	// Unreadable is the number of dead letters that cannot be replayed. They stay.
	Unreadable int
	// Next continues a change that ended at its Limit. It is empty when all is done.
	Next string
}

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

// change applies to at most scanPage dead letters.
type change func(ctx context.Context, sink string, refs []deadLetterRef) (done, unreadable int, err error)

func changeArgs(refs []deadLetterRef, args ...any) []any {
	for _, r := range refs {
		args = append(args, r.id, r.entryID)
	}
	return args
}

func (d *DeadLetters) replayChange(o ReplayOptions) change {
	return func(ctx context.Context, sink string, refs []deadLetterRef) (done, unreadable int, err error) {
		keys := d.retryKeys(sink, DeadLettersKey(d.keys, sink), DeadLetterIndexKey(d.keys, sink))
		args := changeArgs(refs, o.MaxBacklog, o.Ordering.defaultKeyPrefix())
		reply, err := replayDeadLettersScript.Run(ctx, d.client, keys, args...).Int64Slice()
		if err == nil && len(reply) != 3 {
			err = errReply
		}
		if err != nil {
			return 0, 0, redisconn.WrapError("replay dead letters", err)
		}
		if err = d.signalChange(ctx); err == nil && reply[2] == 1 {
			err = ErrFull
		}
		return int(reply[0]), int(reply[1]), err
	}
}

func (d *DeadLetters) dropChange(
	ctx context.Context, sink string, refs []deadLetterRef,
) (done, unreadable int, err error) {
	keys := []string{DeadLettersKey(d.keys, sink), DeadLetterIndexKey(d.keys, sink)}
	done, err = dropDeadLettersScript.Run(ctx, d.client, keys, changeArgs(refs)...).Int()
	if err != nil {
		return 0, 0, redisconn.WrapError("drop dead letters", err)
	}
	return done, 0, nil
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
			if entryIDs[i] != "" {
				refs = append(refs, deadLetterRef{id, entryIDs[i]})
			}
		}
		// An ordered sink gets replayed deliveries in the order in which they became dead letters, which was the log's.
		slices.SortFunc(refs, func(a, b deadLetterRef) int { return streamid.Compare(a.entryID, b.entryID) })
		if err := applyChange(ctx, sink, refs, do, &result); err != nil {
			return result, err
		}
		result.Missing += len(page) - len(refs)
	}
	return result, nil
}

func applyChange(ctx context.Context, sink string, refs []deadLetterRef, do change, result *ChangeResult) error {
	if len(refs) == 0 {
		return nil
	}
	done, unreadable, err := do(ctx, sink, refs)
	result.Done += done
	result.Unreadable += unreadable
	if err == nil {
		result.Missing += len(refs) - done - unreadable
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
		if full {
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
