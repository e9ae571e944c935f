package sourcestore

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/inbox"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// Position is the position of this process in a source. Positions are numbered. [Position.Store] appends a batch and
// advances the number in one write, which Redis rejects unless the caller knows the current number. A process may
// therefore be killed, or paused for an hour, between any two commands. Position must not be used concurrently.
type Position struct {
	s     *Store
	id    sourceID
	token string // identifies this process
	// seq is the number of the position, or "" for a new source. nextSeq is the number of the batch that is being
	// stored, or "".
	seq, nextSeq string
}

const storeOperation = "store messages of a source"

func newToken() string { return rand.Text() }

// Store appends a batch and advances the position. After [redisconn.ErrUnavailable], nothing or everything is stored,
// or a part in a cluster. Repeat it with the same batch, which stores nothing twice, or leave it to the next
// [Store.Open].
func (p *Position) Store(ctx context.Context, batch Batch) error {
	if p.nextSeq == "" {
		seq, _ := strconv.ParseInt(p.seq, 10, 64)
		// Higher than all earlier numbers, even if Redis lost some.
		p.nextSeq = strconv.FormatInt(max(seq+1, time.Now().UnixMilli()), 10)
	}
	home := p.id.positionKey(p.s.keys)
	own, others := p.splitBySlot(home, batch)
	encoded, err := encodeJournal(p.nextSeq, others)
	if err != nil {
		return err
	}
	values := []any{"hub", p.id.hub, "journal", encoded}
	if batch.Cursor != "" || batch.ClearsCursor {
		values = append(values, "cursor", batch.Cursor)
	}
	stored := batch.Stored()
	if stored > 0 {
		values = append(values, "last", time.Now().UnixMilli())
	}
	counters := []any{}
	for _, c := range []struct {
		name string
		n    int
	}{
		{"stored", stored}, {"quarantined", len(batch.Rejected)}, {"returned", batch.Returned}, {"gaps", batch.Gaps},
	} {
		if c.n > 0 {
			counters = append(counters, c.name, c.n)
		}
	}
	moved, err := p.appendStep(ctx, p.seq, p.nextSeq, own, values, counters)
	if err != nil {
		return err
	}
	if !moved {
		return ErrTakenOver
	}
	if err := p.completeSteps(ctx, p.nextSeq, others); err != nil {
		return err
	}
	p.seq, p.nextSeq = p.nextSeq, ""
	size := 0
	for _, r := range batch.Rejected {
		size += len(r.Data) + len(r.Reason)
	}
	p.s.trimmer.Trim(ctx, len(batch.Rejected), size)
	return nil
}

// journal contains the entries for other slots than the position's, which no script can append together with it. It is
// stored with the position. If its writer is killed, the next process that opens the source completes it.
type journal struct {
	Number string
	Steps  []*journalStep
}

// journalStep contains the entries for one slot.
type journalStep struct {
	// PositionKey is the hash of the last number that was stored in the slot.
	PositionKey string
	Entries     []journalEntry
}

// journalEntry is one XADD.
type journalEntry struct {
	Stream string
	Args   [][]byte
}

// splitBySlot groups a batch by slot. own has the slot of the position.
func (p *Position) splitBySlot(home string, batch Batch) (own *journalStep, others []*journalStep) {
	k := p.s.keys
	own = &journalStep{PositionKey: home}
	bySlot := map[int]*journalStep{k.Slot(home): own}
	add := func(positionKey, stream string, args ...string) {
		step := bySlot[k.Slot(stream)]
		if step == nil {
			step = &journalStep{PositionKey: positionKey}
			bySlot[k.Slot(stream)] = step
			others = append(others, step)
		}
		entry := journalEntry{Stream: stream, Args: make([][]byte, len(args))}
		for i, a := range args {
			entry.Args[i] = []byte(a)
		}
		step.Entries = append(step.Entries, entry)
	}
	for i := range batch.Notifications {
		n := &batch.Notifications[i]
		put := func(partition int, account string) {
			add(StepKey(k, p.id.name, partition), eventlog.Key(k, partition),
				"*", "id", n.ID, "topic", n.Topic, "hub", n.Hub, "account", account, "data", string(n.Data),
				"publisher", eventlog.Publisher{Kind: eventlog.PublishedBySource, Name: p.id.name}.String())
		}
		if n.Topic != relay.TopicResync || n.Hub != "" {
			put(k.Partition(n.Hub), n.Account)
			continue
		}
		// Clients of an account stream receive it once, from the first partition.
		put(0, "*")
		for partition := 1; partition < k.Partitions(); partition++ {
			put(partition, "")
		}
	}
	for _, r := range batch.Rejected {
		add(QuarantineStepKey(k, p.id.name), inbox.QuarantineKey(k),
			"*", "data", string(r.Data), "reason", r.Reason, "source", p.id.name, "replay_key", inbox.NewReplayKey())
	}
	return own, others
}

// encodeJournal returns the steps as JSON, or an empty text without steps.
func encodeJournal(number string, steps []*journalStep) ([]byte, error) {
	if len(steps) == 0 {
		return []byte{}, nil
	}
	text, err := json.Marshal(journal{Number: number, Steps: steps})
	if err != nil {
		return nil, fmt.Errorf("encode the journal of a source: %w", err)
	}
	return text, nil
}

func (p *Position) finishJournal(ctx context.Context, text []byte) error {
	if len(text) == 0 {
		return nil
	}
	var j journal
	if err := json.Unmarshal(text, &j); err != nil {
		return fmt.Errorf("read the journal of a source: %w", err)
	}
	return p.completeSteps(ctx, j.Number, j.Steps)
}

func (p *Position) completeSteps(ctx context.Context, number string, steps []*journalStep) error {
	for _, step := range steps {
		if _, err := p.appendStep(ctx, "<", number, step, nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// appendStep appends the entries of one slot and advances its position from one number to the next. It reports whether
// the position had the number from.
func (p *Position) appendStep(
	ctx context.Context, from, next string, step *journalStep, values, counters []any,
) (moved bool, err error) {
	keys := make([]string, 1, 1+len(step.Entries))
	keys[0] = step.PositionKey
	args := make([]any, 0, 8+len(values)+len(counters)+12*len(step.Entries))
	args = append(args, from, next, p.token, len(values)/2)
	args = append(args, values...)
	args = append(args, len(counters)/2)
	args = append(args, counters...)
	for _, e := range step.Entries {
		keys = append(keys, e.Stream)
		args = append(args, len(e.Args))
		for _, a := range e.Args {
			args = append(args, a)
		}
	}
	err = p.s.conn.WithReplication(ctx, step.PositionKey, func(r redisconn.Runner) error {
		n, err := storeScript.Run(ctx, r, keys, args...).Int()
		moved = n == 1
		return err
	})
	return moved, redisconn.WrapError(storeOperation, err)
}
