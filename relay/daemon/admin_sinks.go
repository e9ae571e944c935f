package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/notice"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/pipeline"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
	"github.com/hubrelay/hubrelay/relay/internal/replay"
)

// sinkAdmin implements the admin API of the sinks.
type sinkAdmin struct {
	stores   *stores
	store    *store.Store
	reporter *pipeline.Reporter
	sinks    *sinkRegistry
	notices  *notice.Publisher
	decoder  *ingest.Decoder
	topics   []string
	cursors  *streamid.Cursors
	redis    config.Redis
}

var _ adminserver.Sinks = (*sinkAdmin)(nil)

// openAdminAPI enables the admin API of the sinks. The pipelines must have started.
func (a *Daemon) openAdminAPI(s *stores, store *store.Store, cursorKey streamid.CursorKey) {
	a.operations.Store(&sinkAdmin{
		stores: s, store: store, reporter: a.delivery.reporter,
		sinks: &a.sinks, notices: a.notices, decoder: a.newDecoder(), topics: a.catalog.Names(),
		cursors: streamid.NewCursors(cursorKey), redis: a.cfg.Redis,
	})
}

// adminSinks returns nil while the daemon is starting.
func (a *Daemon) adminSinks() adminserver.Sinks {
	if o := a.operations.Load(); o != nil {
		return o
	}
	return nil
}

func (o *sinkAdmin) List(ctx context.Context) ([]adminapi.Sink, error) {
	names, err := o.sinkNames(ctx)
	if err != nil {
		return nil, err
	}
	return o.describeSinks(ctx, names)
}

// sinkNames returns the sorted names of the sinks that are configured or known in Redis.
func (o *sinkAdmin) sinkNames(ctx context.Context) ([]string, error) {
	names, err := o.stores.queues.KnownSinks(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range o.sinks.all() {
		names = append(names, s.name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func (o *sinkAdmin) describeSinks(ctx context.Context, names []string) ([]adminapi.Sink, error) {
	// Flush first, so the counts include recent deliveries. An error is ignored: a full Redis rejects the counts, but
	// an operator needs the list most in that state. loadSinkStats reports a Redis that is unreachable.
	_ = o.reporter.FlushStats(ctx)
	all, err := loadSinkStats(ctx, o.stores.queues, o.store, names)
	if err != nil {
		return nil, err
	}
	list, now := make([]adminapi.Sink, len(names)), time.Now().UTC().Truncate(time.Millisecond)
	for i, name := range names {
		f := all[i]
		list[i] = adminapi.Sink{
			Name: name, State: adminapi.SinkState(f.State), Reason: f.Reason, Topics: []string{},
			Waiting: f.Queued + f.InDigests, WaitingInDigests: f.InDigests, Retrying: f.Scheduled, Dead: f.DeadLetters,
			Delivered: f.Delivered, Retries: f.Retried, FailedAttempts: f.Failed, Dropped: f.Dropped,
			Since: f.Since, LastSuccessAt: f.LastSuccess, LastError: f.LastError, LastErrorAt: f.LastErrorAt,
		}
		if f.OldestAge > 0 {
			list[i].OldestAt = now.Add(-f.OldestAge)
		}
		if list[i].FailedAttempts == nil {
			list[i].FailedAttempts = map[string]int64{}
		}
		if s := o.sinks.get(name); s != nil {
			list[i].InFlight = s.pipeline.InFlight()
			list[i].Configured, list[i].Type = true, s.cfg.Type
			list[i].Topics = append(list[i].Topics, s.cfg.Topics...)
			here := s.stateOnNode(f.State)
			list[i].State, list[i].Reason = here.state, cmp.Or(here.reason, f.Reason)
			list[i].NextAttemptAt = here.nextAttemptAt.UTC().Truncate(time.Millisecond)
		}
	}
	return list, nil
}

// sinkHealth returns the reason why a sink cannot deliver on this node, or nil.
func sinkHealth(s relay.Sink) error {
	if a, ok := s.(relay.Service); ok {
		return a.Health()
	}
	return nil
}

// nodeState is the state of a sink on this node.
type nodeState struct {
	state adminapi.SinkState
	// reason and nextAttemptAt are set if this node does not deliver to an active sink.
	reason        string
	nextAttemptAt time.Time
}

// stateOnNode returns the state of a sink on this node. stored is its state in Redis.
func (s *openSink) stateOnNode(stored store.State) nodeState {
	if stored.IsOff() {
		return nodeState{state: adminapi.SinkState(stored)}
	}
	if err := sinkHealth(s.sink); err != nil {
		return nodeState{state: adminapi.SinkFailed, reason: err.Error()}
	}
	h := s.pipeline.DestinationHold()
	switch {
	case !h.ThrottledUntil.IsZero():
		return nodeState{adminapi.SinkThrottled, "the destination asked for a pause", h.ThrottledUntil}
	case !h.ProbeAt.IsZero():
		return nodeState{
			adminapi.SinkDown, "the destination failed many times in a row, so only one probe runs at a time", h.ProbeAt,
		}
	}
	return nodeState{state: adminapi.SinkActive}
}

func (o *sinkAdmin) Show(ctx context.Context, name string) (adminapi.Sink, error) {
	if err := o.requireKnown(ctx, name); err != nil {
		return adminapi.Sink{}, err
	}
	list, err := o.describeSinks(ctx, []string{name})
	if err != nil {
		return adminapi.Sink{}, err
	}
	return list[0], nil
}

// requireKnown returns adminserver.ErrNoSink for a sink that is neither configured nor known in Redis.
func (o *sinkAdmin) requireKnown(ctx context.Context, name string) error {
	if o.sinks.get(name) != nil {
		return nil
	}
	names, err := o.stores.queues.KnownSinks(ctx)
	if err != nil || slices.Contains(names, name) {
		return err
	}
	known, err := o.store.Stats.HasData(ctx, name)
	if err == nil && !known {
		err = adminserver.ErrNoSink
	}
	return err
}

func (o *sinkAdmin) Pause(ctx context.Context, name string) error {
	_, err := o.setState(ctx, name, o.store.States.Pause)
	return err
}

func (o *sinkAdmin) Resume(ctx context.Context, name string) error {
	s, err := o.setState(ctx, name, func(ctx context.Context, name string) error {
		recovered, err := o.store.States.Resume(ctx, name)
		if recovered {
			err = errors.Join(err, o.notices.SinkRecovered(ctx, name))
		}
		return err
	})
	if err == nil {
		s.pipeline.ProbeNow()
	}
	return err
}

func (o *sinkAdmin) Retry(ctx context.Context, name string) (adminapi.RetryResult, error) {
	var result adminapi.RetryResult
	s, err := o.requireConfigured(ctx, name)
	if err != nil {
		return result, err
	}
	if result.Sink, err = o.Show(ctx, name); err != nil {
		return result, err
	}
	if state := result.Sink.State; state == adminapi.SinkPaused || state == adminapi.SinkDisabled {
		return result, relay.NewError(relay.CodeInvalidState, fmt.Sprintf("sink %s is %s: resume it first with "+
			"'hubrelay sinks resume %s'", name, state, name))
	}
	result.Started, err = o.store.Retries.MakeDue(ctx, name)
	s.pipeline.ProbeNow()
	return result, err
}

func (o *sinkAdmin) setState(
	ctx context.Context, name string, set func(context.Context, string) error,
) (*openSink, error) {
	s, err := o.requireConfigured(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := set(ctx, name); err != nil {
		return nil, err
	}
	return s, s.pipeline.Refresh(ctx) // other nodes follow within a second
}

// requireConfigured returns a configured sink.
func (o *sinkAdmin) requireConfigured(ctx context.Context, name string) (*openSink, error) {
	if s := o.sinks.get(name); s != nil {
		return s, nil
	}
	if err := o.requireKnown(ctx, name); err != nil {
		return nil, err
	}
	return nil, adminserver.ErrNotConfigured
}

func (o *sinkAdmin) Replay(
	ctx context.Context, name string, selection adminserver.ReplaySelection,
) (replay.Result, error) {
	s, err := o.requireConfigured(ctx, name)
	if err != nil {
		return replay.Result{}, err
	}
	after, err := o.parseStart(selection.After)
	if err != nil {
		return replay.Result{}, err
	}
	until := ""
	if !selection.Until.IsZero() {
		until = replay.PositionAt(selection.Until)
	}
	replayer := replay.Replayer{
		Log: replayLog{o.stores.log, o.stores.queues}, Retries: &o.store.Retries, States: &o.store.States,
	}
	return replayer.Replay(ctx, replay.Request{
		Sink: name, Filter: s.filter, Ordering: s.ordering(), Partitions: o.stores.keys.Partitions(), After: after,
		Until: until, Selects: selection.Selects, Backlog: s.cfg.Backlog, DryRun: selection.DryRun,
	})
}

// parseStart parses a time (RFC 3339), the cursor of a stream, or the ID of an entry of the log. An empty text is the
// beginning of the log. A cursor of one hub covers only the partition of that hub.
func (o *sinkAdmin) parseStart(text string) (replay.Start, error) {
	if text == "" {
		return replay.StartAt("0-0"), nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return replay.StartAt(replay.PositionAt(t)), nil
	}
	if streamid.IsValid(text) {
		return replay.StartAt(text), nil
	}
	cursor, err := o.cursors.Parse(text, o.stores.keys.Partitions())
	if err != nil {
		return nil, adminserver.ErrAfter
	}
	return func(partition int) (string, bool) {
		position, ok := cursor.At(partition)
		return position.String(), ok
	}, nil
}

func (o *sinkAdmin) Test(ctx context.Context, name string) (store.Attempt, error) {
	s, err := o.requireConfigured(ctx, name)
	if err != nil {
		return store.Attempt{}, err
	}
	sample, err := o.sampleFor(s.filter)
	if err != nil {
		return store.Attempt{}, err
	}
	attempt := s.pipeline.SendTest(ctx, sample)
	if attempt.Outcome == relay.OutcomeDelivered.String() {
		s.pipeline.ProbeNow()
	}
	return attempt, nil
}

// sampleID is the object ID of a sample.
const sampleID = "000000000000000000000000"

// sampleFor returns a sample notification that the topics and lists of the filter match, with the member "sample".
// If the sink wants only the relay's own notifications, it is one of them. The sample may not satisfy the
// condition of the filter.
func (o *sinkAdmin) sampleFor(f relay.Filter) (relay.Notification, error) {
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
		return sampleID
	}
	text, err := json.Marshal(map[string]any{
		"topic":  topic,
		"object": map[string]string{"state": "", "error": ""},
		"context": map[string]any{
			"hub_id": first(f.Hubs), "account_id": first(f.Accounts), "environments": []string{first(f.Environments)},
			"dns_zones": []string{}, "clusters": []string{
				first(append(f.Clusters[:len(f.Clusters):len(f.Clusters)], "sample")),
			},
			"containers": []string{first(f.Containers)},
		},
		"sample": true,
	})
	if err != nil {
		return relay.Notification{}, fmt.Errorf("create a sample: %w", err)
	}
	n, rejected := o.decoder.Decode(text, ingest.Defaults{AnyAccount: true})
	if rejected != nil {
		return n, fmt.Errorf("create a sample: %w", rejected)
	}
	return n, nil
}

func (o *sinkAdmin) Forget(ctx context.Context, name string, deadLetters bool) error {
	if o.sinks.get(name) != nil {
		return adminserver.ErrConfigured
	}
	if err := o.requireKnown(ctx, name); err != nil {
		return err
	}
	for partition := range o.stores.keys.Partitions() {
		if err := o.stores.queues.ForgetSink(ctx, partition, name); err != nil {
			return err
		}
	}
	return o.store.Forget(ctx, name, deadLetters)
}

func (o *sinkAdmin) DeadLetters(ctx context.Context, name string, sel store.Selection) (store.Page, error) {
	if err := o.requireKnown(ctx, name); err != nil {
		return store.Page{}, err
	}
	return o.store.DeadLetters.List(ctx, name, sel)
}

func (o *sinkAdmin) DeadLetter(ctx context.Context, name, id string) (*store.DeadLetterContent, error) {
	if err := o.requireKnown(ctx, name); err != nil {
		return nil, err
	}
	return o.store.DeadLetters.Get(ctx, name, id)
}

func (o *sinkAdmin) ReplayDeadLetters(ctx context.Context, name string, ids []string) (store.ChangeResult, error) {
	s, err := o.requireConfigured(ctx, name)
	if err != nil {
		return store.ChangeResult{}, err
	}
	return o.store.DeadLetters.Replay(ctx, name, ids, s.replayOptions())
}

func (o *sinkAdmin) ReplaySelectedDeadLetters(
	ctx context.Context, name string, sel store.Selection,
) (store.ChangeResult, error) {
	s, err := o.requireConfigured(ctx, name)
	if err != nil {
		return store.ChangeResult{}, err
	}
	return o.store.DeadLetters.ReplaySelected(ctx, name, sel, s.replayOptions())
}

func (o *sinkAdmin) DropDeadLetters(ctx context.Context, name string, ids []string) (store.ChangeResult, error) {
	if err := o.requireKnown(ctx, name); err != nil {
		return store.ChangeResult{}, err
	}
	return o.store.DeadLetters.Drop(ctx, name, ids)
}

func (o *sinkAdmin) DropSelectedDeadLetters(
	ctx context.Context, name string, sel store.Selection,
) (store.ChangeResult, error) {
	if err := o.requireKnown(ctx, name); err != nil {
		return store.ChangeResult{}, err
	}
	return o.store.DeadLetters.DropSelected(ctx, name, sel)
}
