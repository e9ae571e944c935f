package delivery

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
)

var (
	//go:embed scripts/deadletter_replay.lua
	reviveSource string
	//go:embed scripts/drop.lua
	dropSource string

	reviveScript = redis.NewScript(delaySource + reviveSource)
	dropScript   = redis.NewScript(dropSource)
)

// ReplayDeadLetters takes dead letters back into the delay queue, due at once, with the schedule begun anew and their history
// kept. Each is moved by one script: it is never in both places or in none. With [ErrFull] it ends where the delay queue
// holds backlog deliveries (zero is no bound); the rest stays as it is.
func (s *Store) ReplayDeadLetters(ctx context.Context, sink string, ids []string, backlog int64) (ChangeResult, error) {
	return s.changeByID(ctx, sink, ids, s.replayOp(backlog))
}

// ReplaySelectedDeadLetters does so with every dead letter that there is now and that sel chooses.
func (s *Store) ReplaySelectedDeadLetters(ctx context.Context, sink string, sel Selection, backlog int64) (ChangeResult, error) {
	return s.changeSelected(ctx, sink, sel, s.replayOp(backlog))
}

// DropDeadLetters removes dead letters for good.
func (s *Store) DropDeadLetters(ctx context.Context, sink string, ids []string) (ChangeResult, error) {
	return s.changeByID(ctx, sink, ids, s.dropBatch)
}

// DropSelectedDeadLetters removes every dead letter that there is now and that sel chooses.
func (s *Store) DropSelectedDeadLetters(ctx context.Context, sink string, sel Selection) (ChangeResult, error) {
	return s.changeSelected(ctx, sink, sel, s.dropBatch)
}

// deadLetterOp does something to at most lettersStep dead letters, given as id and position of each.
type deadLetterOp func(ctx context.Context, sink string, pairs []any) (done, unreadable int, err error)

func (s *Store) replayOp(backlog int64) deadLetterOp {
	return func(ctx context.Context, sink string, pairs []any) (done, unreadable int, err error) {
		keys := s.retryQueueKeys(sink, s.keys.DeadLetters(sink), s.keys.DeadIndex(sink))
		reply, err := reviveScript.Run(ctx, s.client, keys, append([]any{backlog, s.ordering(sink).hubKeyPrefix()}, pairs...)...).Int64Slice()
		if err == nil && len(reply) != 3 {
			err = errReply
		}
		if err != nil {
			return 0, 0, fmt.Errorf("replay dead letters: %w", err)
		}
		if err = s.signalChange(ctx); err == nil && reply[2] == 1 {
			err = ErrFull
		}
		return int(reply[0]), int(reply[1]), err
	}
}

func (s *Store) dropBatch(ctx context.Context, sink string, pairs []any) (done, unreadable int, err error) {
	done, err = dropScript.Run(ctx, s.client, []string{s.keys.DeadLetters(sink), s.keys.DeadIndex(sink)}, pairs...).Int()
	if err != nil {
		return 0, 0, fmt.Errorf("drop dead letters: %w", err)
	}
	return done, 0, nil
}

// changeByID says after an error what was done before it.
func (s *Store) changeByID(ctx context.Context, sink string, ids []string, do deadLetterOp) (ChangeResult, error) {
	var result ChangeResult
	for len(ids) > 0 {
		step := ids[:min(len(ids), deadLetterPageSize)]
		ids = ids[len(step):]
		at, err := s.entryIDs(ctx, sink, step)
		if err != nil {
			return result, err
		}
		var pairs []any
		for i, id := range step {
			if at[i] != "" {
				pairs = append(pairs, id, at[i])
			}
		}
		sortByEntryID(pairs)
		if err := s.applyOp(ctx, sink, pairs, do, &result); err != nil {
			return result, err
		}
		result.Missing += len(step) - len(pairs)/2
	}
	return result, nil
}

// sortByEntryID sorts pairs of id and position: where an order is kept, replayed ones come in that of their deaths, which
// was the log's.
func sortByEntryID(pairs []any) {
	sorted := slices.SortedFunc(slices.Chunk(pairs, 2), func(a, b []any) int {
		return comparePositions(fmt.Sprint(a[1]), fmt.Sprint(b[1]))
	})
	copy(pairs, slices.Concat(sorted...))
}

// comparePositions compares two ids of entries of a stream.
func comparePositions(a, b string) int {
	aTime, aSeq, _ := strings.Cut(a, "-")
	bTime, bSeq, _ := strings.Cut(b, "-")
	return cmp.Or(cmp.Compare(len(aTime), len(bTime)), cmp.Compare(aTime, bTime),
		cmp.Compare(len(aSeq), len(bSeq)), cmp.Compare(aSeq, bSeq))
}

func (s *Store) applyOp(ctx context.Context, sink string, pairs []any, do deadLetterOp, result *ChangeResult) error {
	if len(pairs) == 0 {
		return nil
	}
	done, unreadable, err := do(ctx, sink, pairs)
	result.Done += done
	result.Unreadable += unreadable
	if err == nil {
		result.Missing += len(pairs)/2 - done - unreadable
	}
	return err
}

// changeSelected works up to the dead letter that is the last when it begins: what dies again meanwhile stays.
func (s *Store) changeSelected(ctx context.Context, sink string, sel Selection, do deadLetterOp) (ChangeResult, error) {
	var result ChangeResult
	f, err := sel.compile()
	if err != nil {
		return result, err
	}
	if f.last == "+" {
		newest, err := s.client.XRevRangeN(ctx, s.keys.DeadLetters(sink), "+", "-", 1).Result()
		if err != nil {
			return result, fmt.Errorf("find the last dead letter: %w", err)
		}
		if len(newest) == 0 {
			return result, nil
		}
		f.last = newest[0].ID
	}
	for {
		start := time.Now()
		step, err := s.readDeadLetters(ctx, sink, f.after, f.last)
		if err != nil {
			return result, err
		}
		var pairs []any
		full := false
		for i := range step {
			f.after = "(" + step[i].entryID
			if f.matches(&step[i]) {
				pairs = append(pairs, step[i].ID, step[i].entryID)
			}
			if full = sel.Limit > 0 && result.Done+len(pairs)/2 >= sel.Limit; full {
				break
			}
		}
		if err := s.applyOp(ctx, sink, pairs, do, &result); err != nil {
			return result, err
		}
		if full {
			result.Next = f.after[1:] + "~" + f.last
			return result, nil
		}
		if len(step) < deadLetterPageSize {
			return result, nil
		}
		if err := yieldRedis(ctx, time.Since(start)); err != nil {
			return result, err
		}
	}
}

// yieldRedis leaves Redis to the others for as long as it was kept busy.
func yieldRedis(ctx context.Context, busy time.Duration) error {
	if !relay.Sleep(ctx, min(busy, time.Second)) {
		return ctx.Err()
	}
	return nil
}
