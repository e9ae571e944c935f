package backbone

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/relay"
)

// ErrSourceTakenOver means that another process has taken a source over. Nothing was stored; open it anew.
var ErrSourceTakenOver = errors.New("another process has taken the source over")

// RejectedMessage is what came from a source and was found to be bad.
type RejectedMessage struct {
	Data []byte
	// Reason is a sentence for an operator.
	Reason string
}

// SourceBatch is what came from a source one after the other.
type SourceBatch struct {
	// Notifications are of any hubs. Those of one hub keep their order. A [relay.TopicResync] among them is for those who follow
	// its hub, and without a hub for everybody: it goes to all partitions.
	Notifications []relay.Notification
	// Rejected goes to the quarantine.
	Rejected []RejectedMessage
	// Cursor is where the source goes on behind the batch, empty where that is not known.
	Cursor string
	// Looped counts what came from this relay in the first place and was left out, Gaps how often something may be missing.
	Looped, Gaps int
}

// Received counts what came from the upstream and is good.
func (b *SourceBatch) Received() int {
	n := 0
	for i := range b.Notifications {
		if b.Notifications[i].Topic != relay.TopicResync {
			n++
		}
	}
	return n
}

// SourceStats is what is kept of a source over all nodes and restarts.
type SourceStats struct {
	// Cursor is the place behind the last notification that was stored, empty where the source has none.
	Cursor string
	// HasPosition is false for a source from which nothing was ever stored, not even a place.
	HasPosition                         bool
	Received, Quarantined, Looped, Gaps int64
	// LastStoredAt is when a notification was stored last, by the clock of its node; zero for never.
	LastStoredAt time.Time
}

// SourcePosition is the place of this process in a source. Places are numbered: what [SourcePosition.Store] appends and the next number
// are one write, which Redis refuses to whoever is not at the number before. So a process may be killed, or stopped for
// an hour and go on, between any two commands. It must not be used concurrently.
type SourcePosition struct {
	b     *Store
	id    sourceKey
	token string // of this process' turn
	// seq is the place, empty for none; next that of the batch which is being stored, empty where none is.
	seq, nextSeq string
}

// sourceKey names a source. The place belongs to the name and the hub that it asks for, empty for an account.
type sourceKey struct{ name, hub string }

// positionKey is the hash of the place: in the slot of the hub, so that a hub's notifications are appended in one step.
func (id sourceKey) positionKey(k keyspace.Space) string {
	if id.hub == "" {
		return k.Source(id.name, 0)
	}
	return k.Source(id.name, k.Partition(id.hub))
}

// OpenSource returns the place in a source of that name and hub (empty for an account's pipeline), and what is kept of it.
// Whatever another process has begun to store is completed first.
func (b *Store) OpenSource(ctx context.Context, name, hub string) (*SourcePosition, SourceStats, error) {
	s := &SourcePosition{b: b, id: sourceKey{name, hub}, token: randomHex()}
	fields, err := b.client.HGetAll(ctx, s.id.positionKey(b.keys)).Result()
	if err != nil {
		return nil, SourceStats{}, wrapError("read the place in a source", err)
	}
	s.seq = fields["number"]
	if err := s.finishJournal(ctx, []byte(fields["journal"])); err != nil {
		return nil, SourceStats{}, err
	}
	return s, decodeSourceStats(fields, hub), nil
}

// SourceFigures returns what is kept of a source.
func (b *Store) SourceFigures(ctx context.Context, name, hub string) (SourceStats, error) {
	fields, err := b.client.HGetAll(ctx, sourceKey{name, hub}.positionKey(b.keys)).Result()
	if err != nil {
		return SourceStats{}, wrapError("read the figures of a source", err)
	}
	return decodeSourceStats(fields, hub), nil
}

func decodeSourceStats(fields map[string]string, hub string) SourceStats {
	amount := func(name string) int64 {
		n, _ := strconv.ParseInt(fields[name], 10, 64)
		return n
	}
	f := SourceStats{
		Received: amount("received"), Quarantined: amount("quarantined"), Looped: amount("returned"), Gaps: amount("gaps"),
	}
	if ms := amount("last"); ms > 0 {
		f.LastStoredAt = time.UnixMilli(ms)
	}
	if fields["number"] != "" && fields["hub"] == hub {
		f.HasPosition, f.Cursor = true, fields["cursor"]
	}
	return f
}

// Store appends a batch and moves the place behind it. After [ErrUnavailable] nothing, all or, in a cluster, a part was
// stored: repeat it with the same batch, which stores nothing twice, or leave it to whoever opens the source next.
func (s *SourcePosition) Store(ctx context.Context, batch SourceBatch) error {
	if s.nextSeq == "" {
		before, _ := strconv.ParseInt(s.seq, 10, 64)
		// Higher than all before, even of a Redis that forgot.
		s.nextSeq = strconv.FormatInt(max(before+1, time.Now().UnixMilli()), 10)
	}
	home := s.id.positionKey(s.b.keys)
	own, others := s.splitBySlot(home, batch)
	journal := []byte{}
	if len(others) > 0 {
		var err error
		if journal, err = json.Marshal(sourceJournal{Number: s.nextSeq, Steps: others}); err != nil {
			return fmt.Errorf("store what came from a source: %w", err)
		}
	}
	values := []any{"hub", s.id.hub, "journal", journal}
	if batch.Cursor != "" {
		values = append(values, "cursor", batch.Cursor)
	}
	received := batch.Received()
	if received > 0 {
		values = append(values, "last", time.Now().UnixMilli())
	}
	counters := []any{}
	for _, c := range []struct {
		name string
		n    int
	}{
		{"received", received}, {"quarantined", len(batch.Rejected)}, {"returned", batch.Looped}, {"gaps", batch.Gaps},
	} {
		if c.n > 0 {
			counters = append(counters, c.name, c.n)
		}
	}
	moved, err := s.appendStep(ctx, s.seq, s.nextSeq, own, values, counters)
	if err != nil {
		return err
	}
	if !moved {
		return ErrSourceTakenOver
	}
	if err := s.completeSteps(ctx, s.nextSeq, others); err != nil {
		return err
	}
	s.seq, s.nextSeq = s.nextSeq, ""
	return nil
}

// sourceJournal is what belongs to other slots than the place, which no script can append together with it. It is stored
// with the place, and completed by whoever opens the source next where its writer was killed.
type sourceJournal struct {
	Number string
	Steps  []*journalStep
}

// journalStep is what is appended in one slot.
type journalStep struct {
	// PositionKey is the hash that knows the last number which was appended there.
	PositionKey string `json:"Place"`
	Entries     []journalEntry
}

// journalEntry is one XADD: the stream, and what follows.
type journalEntry struct {
	Stream string
	Args   [][]byte
}

// splitBySlot sorts a batch by slot. What can be appended together with the place is its own.
func (s *SourcePosition) splitBySlot(home string, batch SourceBatch) (own *journalStep, others []*journalStep) {
	k := s.b.keys
	own = &journalStep{PositionKey: home}
	bySlot := map[int]*journalStep{k.Slot(home): own}
	add := func(place, stream string, args ...string) {
		step := bySlot[k.Slot(stream)]
		if step == nil {
			step = &journalStep{PositionKey: place}
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
		put := func(p int, account string) {
			add(k.SourceSteps(s.id.name, p), k.Log(p),
				"*", "id", n.ID, "topic", n.Topic, "hub", n.Hub, "account", account, "data", string(n.Data))
		}
		if n.Topic != relay.TopicResync || n.Hub != "" {
			put(k.Partition(n.Hub), n.Account)
			continue
		}
		// Who follows an account hears of it once, by the first partition, and not by each.
		put(0, "*")
		for p := 1; p < k.Partitions(); p++ {
			put(p, "")
		}
	}
	for _, r := range batch.Rejected {
		add(k.SourceQuarantined(s.id.name), k.Quarantine(),
			"MAXLEN", "~", strconv.Itoa(quarantineMax), "*", "data", string(r.Data), "reason", r.Reason, "source", s.id.name)
	}
	return own, others
}

func (s *SourcePosition) finishJournal(ctx context.Context, journal []byte) error {
	if len(journal) == 0 {
		return nil
	}
	var j sourceJournal
	if err := json.Unmarshal(journal, &j); err != nil {
		return fmt.Errorf("read what was left of a source: %w", err)
	}
	return s.completeSteps(ctx, j.Number, j.Steps)
}

func (s *SourcePosition) completeSteps(ctx context.Context, number string, steps []*journalStep) error {
	for _, step := range steps {
		if _, err := s.appendStep(ctx, "<", number, step, nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// appendStep appends entries of one slot and moves its place from before to next.
func (s *SourcePosition) appendStep(ctx context.Context, before, next string, what *journalStep, values, counters []any) (moved bool, err error) {
	keys := make([]string, 1, 1+len(what.Entries))
	keys[0] = what.PositionKey
	args := make([]any, 0, 8+len(values)+len(counters)+12*len(what.Entries))
	args = append(args, before, next, s.token, len(values)/2)
	args = append(args, values...)
	args = append(args, len(counters)/2)
	args = append(args, counters...)
	for _, e := range what.Entries {
		keys = append(keys, e.Stream)
		args = append(args, len(e.Args))
		for _, a := range e.Args {
			args = append(args, a)
		}
	}
	err = s.b.withReplication(ctx, what.PositionKey, func(w commandRunner) error {
		n, err := sourceScript.Run(ctx, w, keys, args...).Int()
		moved = n == 1
		return err
	})
	return moved, wrapError("store what came from a source", err)
}

// SetSourceStatus keeps, for some time, what the node that reads a source says of it, so that all nodes can show it.
func (b *Store) SetSourceStatus(ctx context.Context, name string, status []byte, keep time.Duration) error {
	return wrapError("tell how a source is", b.client.Set(ctx, b.keys.SourceStatus(name), status, keep).Err())
}

// SourceStatus returns what was kept last, nil for nothing.
func (b *Store) SourceStatus(ctx context.Context, name string) ([]byte, error) {
	status, err := b.client.Get(ctx, b.keys.SourceStatus(name)).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return status, wrapError("ask how a source is", err)
}

// Instance returns the name of this relay, the same for all its nodes and over restarts: 16 hexadecimal digits.
func (b *Store) Instance(ctx context.Context) (string, error) {
	err := b.client.Do(ctx, "SET", b.keys.Instance(), randomHex(), "NX").Err()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", wrapError("give the relay a name", err)
	}
	name, err := b.client.Get(ctx, b.keys.Instance()).Result()
	return name, wrapError("read the relay's name", err)
}
