package backbone

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
)

// ErrSourceMoved means that another process has taken a source over. Nothing was stored; open it anew.
var ErrSourceMoved = errors.New("another process has taken the source over")

// SourceRefusal is what came from a source and was found to be bad.
type SourceRefusal struct {
	Data []byte
	// Reason is a sentence for an operator.
	Reason string
}

// SourceBatch is what came from a source one after the other.
type SourceBatch struct {
	// Notifications are of any hubs. Those of one hub keep their order. A [relay.TopicResync] among them is for those who follow
	// its hub, and without a hub for everybody: it goes to all partitions.
	Notifications []relay.Notification
	// Refused goes to the quarantine.
	Refused []SourceRefusal
	// Cursor is where the source goes on behind the batch, empty where that is not known.
	Cursor string
	// Returned counts what came from this relay in the first place and was left out, Gaps how often something may be missing.
	Returned, Gaps int
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

// SourceFigures is what is kept of a source over all nodes and restarts.
type SourceFigures struct {
	// Cursor is the place behind the last notification that was stored, empty where the source has none.
	Cursor string
	// Begun is false for a source from which nothing was ever stored, not even a place.
	Begun                                 bool
	Received, Quarantined, Returned, Gaps int64
	// Last is when a notification was stored last, by the clock of its node; zero for never.
	Last time.Time
}

// Source is the place of this process in a source. Places are numbered: what [Source.Store] appends and the next number
// are one write, which Redis refuses to whoever is not at the number before. So a process may be killed, or stopped for
// an hour and go on, between any two commands. It must not be used concurrently.
type Source struct {
	b    *Backbone
	id   sourceID
	mark string // of this process' turn
	// number is the place, empty for none; next that of the batch which is being stored, empty where none is.
	number, next string
}

// sourceID names a source. The place belongs to the name and the hub that it asks for, empty for an account.
type sourceID struct{ name, hub string }

// home is the hash of the place: in the slot of the hub, so that a hub's notifications are appended in one step.
func (id sourceID) home(k Keys) string {
	if id.hub == "" {
		return k.Source(id.name, 0)
	}
	return k.Source(id.name, k.Partition(id.hub))
}

// OpenSource returns the place in a source of that name and hub (empty for an account's pipeline), and what is kept of it.
// Whatever another process has begun to store is completed first.
func (b *Backbone) OpenSource(ctx context.Context, name, hub string) (*Source, SourceFigures, error) {
	s := &Source{b: b, id: sourceID{name, hub}, mark: randomHex()}
	fields, err := b.commands.HGetAll(ctx, s.id.home(b.keys)).Result()
	if err != nil {
		return nil, SourceFigures{}, explain("read the place in a source", err)
	}
	s.number = fields["number"]
	if err := s.complete(ctx, []byte(fields["journal"])); err != nil {
		return nil, SourceFigures{}, err
	}
	return s, sourceFigures(fields, hub), nil
}

// SourceFigures returns what is kept of a source.
func (b *Backbone) SourceFigures(ctx context.Context, name, hub string) (SourceFigures, error) {
	fields, err := b.commands.HGetAll(ctx, sourceID{name, hub}.home(b.keys)).Result()
	if err != nil {
		return SourceFigures{}, explain("read the figures of a source", err)
	}
	return sourceFigures(fields, hub), nil
}

func sourceFigures(fields map[string]string, hub string) SourceFigures {
	amount := func(name string) int64 {
		n, _ := strconv.ParseInt(fields[name], 10, 64)
		return n
	}
	f := SourceFigures{
		Received: amount("received"), Quarantined: amount("quarantined"), Returned: amount("returned"), Gaps: amount("gaps"),
	}
	if ms := amount("last"); ms > 0 {
		f.Last = time.UnixMilli(ms)
	}
	if fields["number"] != "" && fields["hub"] == hub {
		f.Begun, f.Cursor = true, fields["cursor"]
	}
	return f
}

// Store appends a batch and moves the place behind it. After [ErrUnavailable] nothing, all or, in a cluster, a part was
// stored: repeat it with the same batch, which stores nothing twice, or leave it to whoever opens the source next.
func (s *Source) Store(ctx context.Context, batch SourceBatch) error {
	if s.next == "" {
		before, _ := strconv.ParseInt(s.number, 10, 64)
		// Higher than all before, even of a Redis that forgot.
		s.next = strconv.FormatInt(max(before+1, time.Now().UnixMilli()), 10)
	}
	home := s.id.home(s.b.keys)
	own, others := s.steps(home, batch)
	journal := []byte{}
	if len(others) > 0 {
		var err error
		if journal, err = json.Marshal(sourceJournal{Number: s.next, Steps: others}); err != nil {
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
		{"received", received}, {"quarantined", len(batch.Refused)}, {"returned", batch.Returned}, {"gaps", batch.Gaps},
	} {
		if c.n > 0 {
			counters = append(counters, c.name, c.n)
		}
	}
	moved, err := s.step(ctx, s.number, s.next, own, values, counters)
	if err != nil {
		return err
	}
	if !moved {
		return ErrSourceMoved
	}
	if err := s.completeSteps(ctx, s.next, others); err != nil {
		return err
	}
	s.number, s.next = s.next, ""
	return nil
}

// sourceJournal is what belongs to other slots than the place, which no script can append together with it. It is stored
// with the place, and completed by whoever opens the source next where its writer was killed.
type sourceJournal struct {
	Number string
	Steps  []*sourceStep
}

// sourceStep is what is appended in one slot.
type sourceStep struct {
	// Place is the hash that knows the last number which was appended there.
	Place   string
	Entries []sourceAdd
}

// sourceAdd is one XADD: the stream, and what follows.
type sourceAdd struct {
	Stream string
	Args   [][]byte
}

// steps sorts a batch by slot. What can be appended together with the place is its own.
func (s *Source) steps(home string, batch SourceBatch) (own *sourceStep, others []*sourceStep) {
	k := s.b.keys
	own = &sourceStep{Place: home}
	bySlot := map[int]*sourceStep{k.Slot(home): own}
	add := func(place, stream string, args ...string) {
		step := bySlot[k.Slot(stream)]
		if step == nil {
			step = &sourceStep{Place: place}
			bySlot[k.Slot(stream)] = step
			others = append(others, step)
		}
		entry := sourceAdd{Stream: stream, Args: make([][]byte, len(args))}
		for i, a := range args {
			entry.Args[i] = []byte(a)
		}
		step.Entries = append(step.Entries, entry)
	}
	for i := range batch.Notifications {
		n := &batch.Notifications[i]
		put := func(p int, account string) {
			add(k.SourceTaken(s.id.name, p), k.Log(p),
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
	for _, r := range batch.Refused {
		add(k.SourceQuarantined(s.id.name), k.Quarantine(),
			"MAXLEN", "~", strconv.Itoa(quarantineMax), "*", "data", string(r.Data), "reason", r.Reason, "source", s.id.name)
	}
	return own, others
}

func (s *Source) complete(ctx context.Context, journal []byte) error {
	if len(journal) == 0 {
		return nil
	}
	var j sourceJournal
	if err := json.Unmarshal(journal, &j); err != nil {
		return fmt.Errorf("read what was left of a source: %w", err)
	}
	return s.completeSteps(ctx, j.Number, j.Steps)
}

func (s *Source) completeSteps(ctx context.Context, number string, steps []*sourceStep) error {
	for _, step := range steps {
		if _, err := s.step(ctx, "<", number, step, nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// step appends entries of one slot and moves its place from before to next.
func (s *Source) step(ctx context.Context, before, next string, what *sourceStep, values, counters []any) (moved bool, err error) {
	keys := make([]string, 1, 1+len(what.Entries))
	keys[0] = what.Place
	args := make([]any, 0, 8+len(values)+len(counters)+12*len(what.Entries))
	args = append(args, before, next, s.mark, len(values)/2)
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
	err = s.b.replicated(ctx, what.Place, func(w writer) error {
		n, err := sourceScript.Run(ctx, w, keys, args...).Int()
		moved = n == 1
		return err
	})
	return moved, explain("store what came from a source", err)
}

// SetSourceStatus keeps, for some time, what the node that reads a source says of it, so that all nodes can show it.
func (b *Backbone) SetSourceStatus(ctx context.Context, name string, status []byte, keep time.Duration) error {
	return explain("tell how a source is", b.commands.Set(ctx, b.keys.SourceStatus(name), status, keep).Err())
}

// SourceStatus returns what was kept last, nil for nothing.
func (b *Backbone) SourceStatus(ctx context.Context, name string) ([]byte, error) {
	status, err := b.commands.Get(ctx, b.keys.SourceStatus(name)).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return status, explain("ask how a source is", err)
}

// Instance returns the name of this relay, the same for all its nodes and over restarts: 16 hexadecimal digits.
func (b *Backbone) Instance(ctx context.Context) (string, error) {
	err := b.commands.Do(ctx, "SET", b.keys.Instance(), randomHex(), "NX").Err()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", explain("give the relay a name", err)
	}
	name, err := b.commands.Get(ctx, b.keys.Instance()).Result()
	return name, explain("read the relay's name", err)
}
