package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/admin"
	"github.com/hubrelay/hubrelay/relay/backbone"
	"github.com/hubrelay/hubrelay/relay/deliver"
	"github.com/hubrelay/hubrelay/relay/ingest"
)

// operations is what an operator can do with the sinks of this daemon.
type operations struct {
	backbone *backbone.Backbone
	store    *deliver.Store
	retries  *deliver.Retries
	sinks    *roster
	notices  *deliver.Notices
	decoder  *ingest.Decoder
	topics   []string
}

var _ admin.Sinks = (*operations)(nil)

// operate opens the admin API. It is called when the pipelines have started.
func (a *App) operate(b *backbone.Backbone, store *deliver.Store) {
	a.operations.Store(&operations{
		backbone: b, store: store, retries: a.delivery.retries,
		sinks: &a.sinks, notices: a.notices, decoder: a.decoder(), topics: a.catalog.Names(),
	})
}

// operating is nil while the daemon is starting.
func (a *App) operating() admin.Sinks {
	if o := a.operations.Load(); o != nil {
		return o
	}
	return nil
}

func (o *operations) List(ctx context.Context) ([]admin.Sink, error) {
	names, err := o.backbone.KnownSinks(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range o.sinks.all() {
		names = append(names, s.name)
	}
	slices.Sort(names)
	return o.describe(ctx, slices.Compact(names))
}

func (o *operations) describe(ctx context.Context, names []string) ([]admin.Sink, error) {
	// What was delivered a moment ago waits nowhere any more: the figures must have it, or it seems to be gone. A Redis that is
	// full takes no counts, which is when an operator wants to look; that one is away is what figuresOf says.
	_ = o.retries.Tell(ctx)
	all, err := figuresOf(ctx, o.backbone, o.store, names)
	if err != nil {
		return nil, err
	}
	list := make([]admin.Sink, len(names))
	for i, name := range names {
		f := all[i]
		list[i] = admin.Sink{
			Name: name, State: f.State, Reason: f.Reason, Backlog: f.Queued, Parked: f.Parked, Gathering: f.Gathering, Dead: f.Dead,
			OldestSeconds: f.Undelivered.Seconds(), Delivered: f.Delivered, Retried: f.Retried, Failed: f.Failed,
			Dropped: f.Dropped, LastError: f.LastError,
		}
		if !f.Since.IsZero() {
			list[i].Since = &f.Since
		}
		if !f.LastSuccess.IsZero() {
			list[i].LastSuccess = &f.LastSuccess
		}
		if !f.LastErrorAt.IsZero() {
			list[i].LastErrorAt = &f.LastErrorAt
		}
		if list[i].Failed == nil {
			list[i].Failed = map[string]int64{}
		}
		if s := o.sinks.named(name); s != nil {
			list[i].InFlight = s.pipeline.InFlight()
			list[i].Configured, list[i].Type, list[i].Topics = true, s.cfg.Type, strings.Join(s.cfg.Topics, ", ")
			if f.State == deliver.StateActive {
				halted(&list[i], s.sink, s.pipeline)
			}
		}
	}
	return list, nil
}

// ailment is why a sink delivers nothing on this node, although nobody has stopped it; nil where it does.
func ailment(s relay.Sink) error {
	if a, ok := s.(relay.Ailing); ok {
		return a.Ailment()
	}
	return nil
}

// halted says of an active sink why this node delivers nothing to it, where that is so.
func halted(s *admin.Sink, sink relay.Sink, p *deliver.Pipeline) {
	h := p.Halted()
	if !h.Down.IsZero() {
		at := h.Down.UTC().Truncate(time.Millisecond)
		s.State, s.DownUntil = admin.StateDown, &at
		s.Reason = "the destination failed many times in a row: one attempt at a time is made as a probe"
	}
	if !h.Rest.IsZero() {
		at := h.Rest.UTC().Truncate(time.Millisecond)
		s.State, s.RestingUntil = admin.StateResting, &at
		s.Reason = "the destination asked to be left alone for a while"
	}
	if err := ailment(sink); err != nil {
		s.State, s.Reason = admin.StateFailed, err.Error()
	}
}

func (o *operations) Show(ctx context.Context, name string) (admin.Sink, error) {
	if err := o.known(ctx, name); err != nil {
		return admin.Sink{}, err
	}
	list, err := o.describe(ctx, []string{name})
	if err != nil {
		return admin.Sink{}, err
	}
	return list[0], nil
}

// known returns admin.ErrNoSink for a sink that is neither configured nor remembered.
func (o *operations) known(ctx context.Context, name string) error {
	if o.sinks.named(name) != nil {
		return nil
	}
	names, err := o.backbone.KnownSinks(ctx)
	if err != nil || slices.Contains(names, name) {
		return err
	}
	remembered, err := o.store.Remembers(ctx, name)
	if err == nil && !remembered {
		err = admin.ErrNoSink
	}
	return err
}

func (o *operations) Pause(ctx context.Context, name string) error {
	_, err := o.setState(ctx, name, o.store.Pause)
	return err
}

func (o *operations) Resume(ctx context.Context, name string) error {
	s, err := o.setState(ctx, name, func(ctx context.Context, name string) error {
		recovered, err := o.store.Resume(ctx, name)
		if recovered {
			err = errors.Join(err, o.notices.Recovered(ctx, name))
		}
		return err
	})
	if err == nil {
		s.pipeline.Hurry()
	}
	return err
}

func (o *operations) Retry(ctx context.Context, name string) (int, error) {
	s, err := o.here(ctx, name)
	if err != nil {
		return 0, err
	}
	stored, err := o.store.State(ctx, name)
	switch {
	case err != nil:
		return 0, err
	case stored.State != deliver.StateActive:
		return 0, relay.NewError(relay.CodeInvalidState, fmt.Sprintf("sink %s is %s and tries nothing: resume it first ('hubrelay sinks resume %s')",
			name, stored.State, name))
	}
	n, err := o.store.Hasten(ctx, name)
	s.pipeline.Hurry()
	return n, err
}

func (o *operations) setState(ctx context.Context, name string, set func(context.Context, string) error) (*sink, error) {
	s, err := o.here(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := set(ctx, name); err != nil {
		return nil, err
	}
	return s, s.pipeline.Refresh(ctx) // the other nodes follow within a second
}

// here returns a configured sink.
func (o *operations) here(ctx context.Context, name string) (*sink, error) {
	if s := o.sinks.named(name); s != nil {
		return s, nil
	}
	if err := o.known(ctx, name); err != nil {
		return nil, err
	}
	return nil, admin.ErrNotConfigured
}

func (o *operations) Replay(ctx context.Context, name, after string) (deliver.Replayed, error) {
	s, err := o.here(ctx, name)
	if err != nil {
		return deliver.Replayed{}, err
	}
	if t, err := time.Parse(time.RFC3339, after); err == nil {
		after = deliver.CursorAt(t)
	} else if !backbone.ValidCursor(after) {
		return deliver.Replayed{}, admin.ErrAfter
	}
	return o.store.Replay(ctx, o.backbone, deliver.Replay{
		Sink: name, Filter: s.filter, Partitions: o.backbone.Keys().Partitions(), After: after,
		Backlog: s.cfg.Backlog,
	})
}

func (o *operations) Test(ctx context.Context, name string) (deliver.Attempt, error) {
	s, err := o.here(ctx, name)
	if err != nil {
		return deliver.Attempt{}, err
	}
	sample, err := o.sample(s.filter)
	if err != nil {
		return deliver.Attempt{}, err
	}
	tried := s.pipeline.Try(ctx, sample)
	if tried.Outcome == relay.OutcomeDelivered.String() {
		s.pipeline.Hurry()
	}
	return tried, nil
}

// nobody is the identifier of what a sample says it is about.
const nobody = "000000000000000000000000"

// sample is a notification as the sink gets them, marked by a member "sample"; one of the relay's own where it wants no
// others. Where the filter has a condition, the sample need not meet it.
func (o *operations) sample(f relay.Filter) (relay.Notification, error) {
	topic := "container.created"
	if !f.Topics.Match(topic) {
		own := relay.OperationalTopics()
		at := slices.IndexFunc(own, func(t relay.TopicInfo) bool { return f.Topics.Match(t.Name) })
		if i := slices.IndexFunc(o.topics, f.Topics.Match); i >= 0 {
			topic = o.topics[i]
		} else if at >= 0 {
			return o.notices.Sample(own[at].Name)
		}
	}
	first := func(list []string) string {
		if len(list) > 0 {
			return list[0]
		}
		return nobody
	}
	text, err := json.Marshal(map[string]any{
		"topic":  topic,
		"object": map[string]string{"state": "", "error": ""},
		"context": map[string]any{
			"hub_id": first(f.Hubs), "account_id": first(f.Accounts), "environments": []string{first(f.Environments)},
			"dns_zones": []string{}, "clusters": []string{first(append(f.Clusters[:len(f.Clusters):len(f.Clusters)], "sample"))},
			"containers": []string{first(f.Containers)},
		},
		"sample": true,
	})
	if err != nil {
		return relay.Notification{}, fmt.Errorf("make a sample: %w", err)
	}
	n, refused := o.decoder.Decode(text, ingest.Defaults{AnyAccount: true})
	if refused != nil {
		return n, fmt.Errorf("make a sample: %w", refused)
	}
	return n, nil
}

func (o *operations) Forget(ctx context.Context, name string, deadLetters bool) error {
	if o.sinks.named(name) != nil {
		return admin.ErrConfigured
	}
	if err := o.known(ctx, name); err != nil {
		return err
	}
	for partition := range o.backbone.Keys().Partitions() {
		if err := o.backbone.ForgetSink(ctx, partition, name); err != nil {
			return err
		}
	}
	return o.store.Forget(ctx, name, deadLetters)
}

func (o *operations) DeadLetters(ctx context.Context, name string, sel deliver.Selection) (deliver.Page, error) {
	if err := o.known(ctx, name); err != nil {
		return deliver.Page{}, err
	}
	return o.store.DeadLetters(ctx, name, sel)
}

func (o *operations) DeadLetter(ctx context.Context, name, id string) (*deliver.DeadLetterContent, error) {
	if err := o.known(ctx, name); err != nil {
		return nil, err
	}
	return o.store.DeadLetter(ctx, name, id)
}

func (o *operations) ReplayDead(ctx context.Context, name string, ids []string) (deliver.Changed, error) {
	s, err := o.here(ctx, name)
	if err != nil {
		return deliver.Changed{}, err
	}
	return o.store.ReplayDead(ctx, name, ids, s.cfg.Backlog)
}

func (o *operations) ReplayAllDead(ctx context.Context, name string, sel deliver.Selection) (deliver.Changed, error) {
	s, err := o.here(ctx, name)
	if err != nil {
		return deliver.Changed{}, err
	}
	return o.store.ReplayAllDead(ctx, name, sel, s.cfg.Backlog)
}

func (o *operations) DropDead(ctx context.Context, name string, ids []string) (deliver.Changed, error) {
	if err := o.known(ctx, name); err != nil {
		return deliver.Changed{}, err
	}
	return o.store.DropDead(ctx, name, ids)
}

func (o *operations) DropAllDead(ctx context.Context, name string, sel deliver.Selection) (deliver.Changed, error) {
	if err := o.known(ctx, name); err != nil {
		return deliver.Changed{}, err
	}
	return o.store.DropAllDead(ctx, name, sel)
}
