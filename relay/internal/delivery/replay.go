package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/history"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
	"github.com/hubrelay/hubrelay/relay/internal/replay"
)

// replayLog combines the log with the queues for package replay.
type replayLog struct {
	*eventlog.Log
	*queue.Store
}

var _ replay.Log = replayLog{}

// IsAfter reports whether a cursor is after a position.
func (replayLog) IsAfter(cursor, position string) bool { return streamid.Compare(cursor, position) > 0 }

// ReplaySink delivers selected notifications of the log again.
func (s *Service) ReplaySink(
	ctx context.Context, name string, selection replay.Selection,
) (replay.Result, error) {
	sink, err := s.requireConfigured(ctx, name)
	if err != nil {
		return replay.Result{}, err
	}
	after, err := s.parseStart(selection.After)
	if err != nil {
		return replay.Result{}, err
	}
	selects := selection.Selects
	if selection.FailedOnly {
		failed, err := s.findFailed(ctx, name, after)
		if err != nil {
			return replay.Result{}, err
		}
		selects = func(n relay.Notification) bool {
			id, ok := history.ParseEventID(n.ID)
			_, hasFailed := failed[id]
			return ok && hasFailed && selection.Selects(n)
		}
	}
	until := ""
	if !selection.Until.IsZero() {
		until = replay.PositionAt(selection.Until)
	}
	replayer := replay.Replayer{
		Log: replayLog{s.opts.Log, s.opts.Queues}, Retries: &s.opts.Deliveries.Retries, States: &s.opts.Deliveries.States,
		Memory: s.opts.Memory,
	}
	return replayer.Replay(ctx, replay.Request{
		Sink: name, Filter: sink.filter, Ordering: sink.ordering(), Partitions: s.keys.Partitions(), After: after,
		Until: until, Selects: selects, Backlog: sink.cfg.Backlog,
		BacklogBytes: int64(sink.cfg.BacklogBytes), DryRun: selection.DryRun,
	})
}

// findFailed returns the events after a position that a sink has not accepted.
func (s *Service) findFailed(
	ctx context.Context, sink string, after replay.Start,
) (map[history.EventID]time.Time, error) {
	if s.opts.History == nil {
		return nil, relay.NewError(relay.CodeInvalidState,
			"history.deliveries is none, so the relay cannot find the events that failed")
	}
	var since time.Time
	for partition := range s.keys.Partitions() {
		text, isIncluded := after(partition)
		position, _ := streamid.ParsePosition(text)
		if at := position.Time(); isIncluded && (since.IsZero() || at.Before(since)) {
			since = at
		}
	}
	failed, err := s.opts.HistoryStore.FailedEvents(ctx, sink, since)
	if errors.Is(err, history.ErrTooManyEvents) {
		err = relay.NewError(relay.CodeInvalidArgument, err.Error()+"; select a shorter time").WithPointer("/after")
	}
	return failed, err
}

// parseStart parses a time (RFC 3339), the cursor of a stream, or the ID of an entry of the log. An empty text is the
// beginning of the log. A cursor of one hub covers only the partition of that hub.
func (s *Service) parseStart(text string) (replay.Start, error) {
	if text == "" {
		return replay.StartAt("0-0"), nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return replay.StartAt(replay.PositionAt(t)), nil
	}
	if streamid.IsValid(text) {
		return replay.StartAt(text), nil
	}
	cursor, err := s.opts.Cursors.Parse(text, s.keys.Partitions())
	if err != nil {
		const detail = "after is neither the cursor of a stream, an ID such as 1732153000123-0, a time such as " +
			"2026-11-21T04:00:00Z, nor an age such as 2h"
		return nil, relay.NewError(relay.CodeInvalidArgument, detail).WithPointer("/after")
	}
	return func(partition int) (string, bool) {
		position, ok := cursor.At(partition)
		return position.String(), ok
	}, nil
}

// TestSink makes one attempt with a sample that is not stored.
func (s *Service) TestSink(ctx context.Context, name string) (store.Attempt, error) {
	sink, err := s.requireConfigured(ctx, name)
	if err != nil {
		return store.Attempt{}, err
	}
	sample, err := s.sampleFor(sink.filter)
	if err != nil {
		return store.Attempt{}, err
	}
	attempt := sink.pipeline.SendTest(ctx, sample)
	if attempt.Outcome == relay.OutcomeDelivered.String() {
		sink.pipeline.ProbeNow()
	}
	return attempt, nil
}

// sampleID is the object ID of a sample.
const sampleID = "000000000000000000000000"

// sampleFor returns a sample notification that the topics and lists of the filter match, with the member "sample".
// If the sink wants only the relay's own notifications, it is one of them. The sample may not satisfy the
// condition of the filter.
func (s *Service) sampleFor(f relay.Filter) (relay.Notification, error) {
	topic := "container.created"
	if !f.Topics.Match(topic) {
		own := relay.OperationalTopics()
		at := slices.IndexFunc(own, func(t relay.TopicInfo) bool { return f.Topics.Match(t.Name) })
		if i := slices.IndexFunc(s.sinks.opts.Catalog.Names(), f.Topics.Match); i >= 0 {
			topic = s.sinks.opts.Catalog.Names()[i]
		} else if at >= 0 {
			return s.opts.Notices.Sample(own[at].Name)
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
	n, rejected := s.opts.Decoder.Decode(text, ingest.Defaults{AnyAccount: true})
	if rejected != nil {
		return n, fmt.Errorf("create a sample: %w", rejected)
	}
	return n, nil
}
