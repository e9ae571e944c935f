package deliver

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
	//go:embed scripts/revive.lua
	reviveSource string
	//go:embed scripts/drop.lua
	dropSource string

	reviveScript = redis.NewScript(delaySource + reviveSource)
	dropScript   = redis.NewScript(dropSource)
)

// ReplayDead takes dead letters back into the delay queue, due at once, with the schedule begun anew and their history
// kept. Each is moved by one script: it is never in both places or in none. With [ErrFull] it ends where the delay queue
// holds backlog deliveries (zero is no bound); the rest stays as it is.
func (s *Store) ReplayDead(ctx context.Context, sink string, ids []string, backlog int64) (Changed, error) {
	return s.changeByID(ctx, sink, ids, s.revive(backlog))
}

// ReplayAllDead does so with every dead letter that there is now and that sel chooses.
func (s *Store) ReplayAllDead(ctx context.Context, sink string, sel Selection, backlog int64) (Changed, error) {
	return s.changeAll(ctx, sink, sel, s.revive(backlog))
}

// DropDead removes dead letters for good.
func (s *Store) DropDead(ctx context.Context, sink string, ids []string) (Changed, error) {
	return s.changeByID(ctx, sink, ids, s.drop)
}

// DropAllDead removes every dead letter that there is now and that sel chooses.
func (s *Store) DropAllDead(ctx context.Context, sink string, sel Selection) (Changed, error) {
	return s.changeAll(ctx, sink, sel, s.drop)
}

// change does something to at most lettersStep dead letters, given as id and position of each.
type change func(ctx context.Context, sink string, pairs []any) (done, unreadable int, err error)

func (s *Store) revive(backlog int64) change {
	return func(ctx context.Context, sink string, pairs []any) (done, unreadable int, err error) {
		keys := s.delay(sink, s.keys.DeadLetters(sink), s.keys.DeadIndex(sink))
		reply, err := reviveScript.Run(ctx, s.client, keys, append([]any{backlog, s.ordering(sink).hubs()}, pairs...)...).Int64Slice()
		if err == nil && len(reply) != 3 {
			err = errReply
		}
		if err != nil {
			return 0, 0, fmt.Errorf("replay dead letters: %w", err)
		}
		if err = s.touch(ctx); err == nil && reply[2] == 1 {
			err = ErrFull
		}
		return int(reply[0]), int(reply[1]), err
	}
}

func (s *Store) drop(ctx context.Context, sink string, pairs []any) (done, unreadable int, err error) {
	done, err = dropScript.Run(ctx, s.client, []string{s.keys.DeadLetters(sink), s.keys.DeadIndex(sink)}, pairs...).Int()
	if err != nil {
		return 0, 0, fmt.Errorf("drop dead letters: %w", err)
	}
	return done, 0, nil
}

// changeByID says after an error what was done before it.
func (s *Store) changeByID(ctx context.Context, sink string, ids []string, do change) (Changed, error) {
	var result Changed
	for len(ids) > 0 {
		step := ids[:min(len(ids), lettersStep)]
		ids = ids[len(step):]
		at, err := s.locate(ctx, sink, step)
		if err != nil {
			return result, err
		}
		var pairs []any
		for i, id := range step {
			if at[i] != "" {
				pairs = append(pairs, id, at[i])
			}
		}
		asTheyDied(pairs)
		if err := s.step(ctx, sink, pairs, do, &result); err != nil {
			return result, err
		}
		result.Missing += len(step) - len(pairs)/2
	}
	return result, nil
}

// asTheyDied sorts pairs of id and position: where an order is kept, replayed ones come in that of their deaths, which
// was the log's.
func asTheyDied(pairs []any) {
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

func (s *Store) step(ctx context.Context, sink string, pairs []any, do change, result *Changed) error {
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

// changeAll works up to the dead letter that is the last when it begins: what dies again meanwhile stays.
func (s *Store) changeAll(ctx context.Context, sink string, sel Selection, do change) (Changed, error) {
	var result Changed
	f, err := sel.filter()
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
		step, err := s.letters(ctx, sink, f.after, f.last)
		if err != nil {
			return result, err
		}
		var pairs []any
		full := false
		for i := range step {
			f.after = "(" + step[i].at
			if f.passes(&step[i]) {
				pairs = append(pairs, step[i].ID, step[i].at)
			}
			if full = sel.Limit > 0 && result.Done+len(pairs)/2 >= sel.Limit; full {
				break
			}
		}
		if err := s.step(ctx, sink, pairs, do, &result); err != nil {
			return result, err
		}
		if full {
			result.Next = f.after[1:] + "~" + f.last
			return result, nil
		}
		if len(step) < lettersStep {
			return result, nil
		}
		if err := rest(ctx, time.Since(start)); err != nil {
			return result, err
		}
	}
}

// rest leaves Redis to the others for as long as it was kept busy.
func rest(ctx context.Context, busy time.Duration) error {
	if !relay.Pause(ctx, min(busy, time.Second)) {
		return ctx.Err()
	}
	return nil
}
