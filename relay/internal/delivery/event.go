package delivery

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/pipeline"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/history"
)

// ShowEvent returns everything that is known about an event. The error is 422.invalid-argument for a malformed ID, and
// 404.event for an unknown one.
func (s *Service) ShowEvent(ctx context.Context, text string) (adminapi.EventDetails, error) {
	id, ok := history.ParseEventID(text)
	if !ok {
		return adminapi.EventDetails{}, relay.NewError(relay.CodeInvalidArgument,
			strconv.Quote(relay.Truncate(text, 100))+" is not the ID of an event, which has 24 hexadecimal digits")
	}
	found, err := s.opts.HistoryStore.Find(ctx, id)
	if err != nil {
		return adminapi.EventDetails{}, err
	}
	e := eventState{Found: found}
	ref, hasRef := found.Event()
	if hasRef {
		e.partition = ref.Partition
		e.entry.Notification = relay.Notification{ID: id.String(), Topic: ref.Topic, Cursor: ref.Cursor.String()}
	}
	if err := s.findInLog(ctx, id, &e); err != nil {
		return adminapi.EventDetails{}, err
	}
	if !hasRef && !e.isInLog {
		return adminapi.EventDetails{}, relay.NewError(relay.CodeNoEvent, "there is no event "+id.String()+
			": it is unknown, or neither the log nor the history has it any longer")
	}
	return s.describeEvent(ctx, id, &e)
}

// eventState is an event in the log with its records in the history.
type eventState struct {
	history.Found
	partition int
	entry     eventlog.Entry // only ID, topic and cursor if the event is not in the log
	isInLog   bool
}

// findInLog reads the event from the log: at its position if that is known, and otherwise around the time in its ID.
func (s *Service) findInLog(ctx context.Context, id history.EventID, e *eventState) error {
	if e.entry.Cursor != "" {
		list, err := s.opts.Log.ReadBefore(ctx, e.partition, e.entry.Cursor, 1)
		if err == nil && len(list) > 0 && list[0].ID == id.String() {
			e.entry, e.isInLog = list[0], true
		}
		return err
	}
	search, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	var err error
	e.entry, e.partition, e.isInLog, err = s.opts.Log.FindNear(search, id.String(), id.Time())
	if err != nil && search.Err() != nil && ctx.Err() == nil {
		return relay.NewError(relay.CodeNotReady, "no record names the place of the event in the log, and the log is too large "+
			"to be searched: use 'hubrelay events search'")
	}
	return err
}

func (s *Service) describeEvent(
	ctx context.Context, id history.EventID, e *eventState,
) (adminapi.EventDetails, error) {
	details := adminapi.EventDetails{
		Event: (&history.Event{Entry: e.entry, Time: e.time(id)}).Describe(),
		Sinks: []adminapi.EventSink{}, Streams: e.streams(), Incomplete: e.Incomplete,
	}
	if e.isInLog && s.opts.Receivers != nil {
		keys := s.opts.Receivers(e.entry.Notification, details.Time)
		for i := range details.Streams {
			if details.Streams[i].Node == s.opts.Node {
				details.Streams[i].Keys = keys
			}
		}
	}
	if e.isInLog {
		details.Payload = e.entry.Data
		envelope, _ := e.entry.Envelope() // an event of another program may not have an object
		details.ObjectID = envelope.Object.ID
	}
	filters, err := s.filtersFor(ctx, e)
	if err != nil {
		return details, err
	}
	names := append(slices.Collect(maps.Keys(filters.bySink)), sinkNames(s.sinks.list())...)
	for _, a := range e.Attempts {
		names = append(names, a.Sink)
	}
	for _, d := range e.Drops {
		names = append(names, d.Sink)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		d, err := s.describeDelivery(ctx, e, name, filters)
		if err != nil {
			return details, err
		}
		details.Sinks = append(details.Sinks, d)
	}
	return details, nil
}

// describeDelivery describes the delivery of an event to a sink.
func (s *Service) describeDelivery(
	ctx context.Context, e *eventState, sink string, filters filtersAt,
) (adminapi.EventSink, error) {
	d := adminapi.EventSink{Sink: sink, State: adminapi.DeliveryUnknown, Attempts: []adminapi.EventAttempt{}}
	ids := []string{e.entry.ID}
	var last *history.Attempt
	for _, a := range e.Attempts {
		if a.Sink != sink {
			continue
		}
		last = a
		attempt := adminapi.EventAttempt{
			Number: a.Number, Time: a.Time, DurationMS: float64(a.Duration.Microseconds()) / 1000, Outcome: a.Outcome.String(),
			Status: a.Status, Error: a.Error, Node: a.Node,
		}
		if a.Delivery != (history.EventID{}) {
			attempt.DeliveryID = a.Delivery.String()
			ids = append(ids, attempt.DeliveryID)
		}
		d.Attempts = append(d.Attempts, attempt)
	}
	// Most sinks exclude an event. For them, Redis is not asked.
	if last == nil && !filters.areCurrent && isExcluded(e, &d, filters) {
		return d, nil
	}
	slices.Sort(ids)
	at, err := s.locate(ctx, e, sink, slices.Compact(ids))
	if err != nil {
		return d, err
	}
	switch {
	case last != nil && last.State == history.StateDelivered && !at.IsScheduled && !at.isQueued:
		d.State = adminapi.DeliveryDelivered
	case at.IsScheduled:
		describeScheduled(&d, at.Location)
	case !at.SealAt.IsZero():
		d.State, d.Reason, d.NextAttemptAt = adminapi.DeliveryWaiting, "digest", &at.SealAt
	case at.isQueued:
		d.State = adminapi.DeliveryWaiting
	case at.IsDead:
		describeDead(&d, last)
	case e.describeDrop(&d, last):
	case e.Incomplete:
		d.Detail = "the history was too large to be read in time"
	case last != nil:
		describeLast(&d, last)
	default:
		return d, s.describeUnattempted(ctx, e, &d, filters)
	}
	if d.Reason == "" && (d.State == adminapi.DeliveryWaiting || d.State == adminapi.DeliveryRetrying) {
		err = s.describeHold(ctx, &d)
	}
	return d, err
}

// isExcluded reports whether the filter of a sink has excluded the event, and describes how.
func isExcluded(e *eventState, d *adminapi.EventSink, filters filtersAt) bool {
	filter, ok := filters.bySink[d.Sink]
	if !ok || !e.isInLog {
		return false
	}
	compiled, err := filter.compile()
	if err != nil {
		d.Detail = "the filter of that time cannot be evaluated: " + err.Error()
		return false
	}
	rule, detail := filter.explain(compiled, e.entry.Notification)
	if rule == "" {
		return false
	}
	d.State, d.Reason, d.Detail = adminapi.DeliveryNotMatched, rule, detail
	return true
}

// describeDead describes a dead letter by its last attempt, which may be nil.
func describeDead(d *adminapi.EventSink, last *history.Attempt) {
	d.State = adminapi.DeliveryDead
	switch {
	case last == nil || last.State != history.StateDead:
	case last.Outcome == relay.OutcomeRetry:
		d.Reason, d.Detail = pipeline.ReasonExhausted, "no attempts are left, or it has reached retry.max_age"
	default:
		d.Reason, d.Detail = pipeline.ReasonPermanent, "the destination does not accept it"
	}
}

// describeScheduled describes a delivery in the retry queue.
func describeScheduled(d *adminapi.EventSink, at store.Location) {
	d.State = adminapi.DeliveryRetrying
	if at.IsDead {
		d.Detail = "it was replayed; the dead letter remains until it is replayed or dropped"
	}
	switch {
	case at.IsBlocked:
		d.Reason = reasonOrdering
		d.Detail = "an earlier delivery with the same ordering key is not complete"
	case at.IsRunning:
		d.Reason, d.Detail = reasonRunning, "an attempt is running"
	default:
		d.NextAttemptAt = &at.DueAt
	}
}

// The reasons of deliveries in the retry queue without a time.
const (
	reasonOrdering = "ordering"
	reasonRunning  = "running"
)

// location is the place of a delivery in Redis.
type location struct {
	store.Location
	isQueued bool
}

func (s *Service) locate(ctx context.Context, e *eventState, sink string, ids []string) (location, error) {
	var at location
	queued, err := s.opts.Queues.Queued(ctx, e.partition, sink, []string{e.entry.Cursor})
	if err != nil {
		return at, err
	}
	at.isQueued = queued[0]
	at.Location, err = s.opts.Deliveries.Locate(ctx, sink, e.entry.ID, ids)
	return at, err
}

// settleTime is the maximum time between the record of an attempt and its result in Redis, such as the halves of a
// rejected batch.
const settleTime = time.Minute

// describeLast describes a delivery that is nowhere in Redis by its last attempt, which has not delivered it.
func describeLast(d *adminapi.EventSink, last *history.Attempt) {
	switch {
	case last.State == history.StateDead: // a replay would be recorded
		d.State, d.Reason = adminapi.DeliveryDropped, "dead_letter_dropped"
		d.Detail = "the dead letter was dropped: by an operator ('hubrelay audit' shows who), or because of the limits of the sink"
	case time.Since(last.Time) < settleTime:
		d.State = adminapi.DeliveryRetrying
	case last.Delivery != history.EventID{}:
		d.Detail = "another batch or digest may contain the event"
	default:
		d.Detail = detailLost
	}
}

// describeDrop describes a delivery that a limit or an operator has dropped after its last attempt. It reports whether there
// is one.
func (e *eventState) describeDrop(d *adminapi.EventSink, last *history.Attempt) bool {
	for _, drop := range e.Drops {
		if drop.Sink != d.Sink || last != nil && drop.Time.Before(last.Time) {
			continue
		}
		d.State, d.Reason = adminapi.DeliveryDropped, drop.Reason
		d.Detail = "the account has used its share of the backlog"
		if drop.Reason == adminapi.DroppedByOperator {
			d.Detail = "an operator dropped the delivery: 'hubrelay audit' shows who"
		}
		return true
	}
	return false
}

// recordTime is the maximum time from an attempt to its record, if Redis responds quickly.
const recordTime = 2 * time.Second

const detailLost = "the history of this delivery is lost or expired"

// describeUnattempted describes a delivery that is nowhere in Redis and has no recorded attempt.
func (s *Service) describeUnattempted(
	ctx context.Context, e *eventState, d *adminapi.EventSink, filters filtersAt,
) error {
	sink := s.sinks.get(d.Sink)
	if filters.areCurrent {
		if isExcluded(e, d, filters) { // but perhaps not at that time
			d.Detail = "the filter of that time is unknown; today's excludes the event by " + d.Reason
			d.State, d.Reason = adminapi.DeliveryUnknown, ""
			return nil
		}
	} else if _, existed := filters.bySink[d.Sink]; !existed && sink != nil && !startsAtBeginning(sink.cfg) {
		d.State, d.Reason = adminapi.DeliveryNotMatched, "added_later"
		d.Detail = "the sink was not configured when the event was dispatched"
		return nil
	}
	filled, err := s.opts.Queues.FilledTo(ctx, e.partition, d.Sink)
	if err != nil {
		return err
	}
	if streamid.Compare(e.entry.Cursor, filled) > 0 {
		d.State, d.Detail = adminapi.DeliveryWaiting, "the event is not yet in the queue of the sink"
		return nil
	}
	if d.Detail = detailLost; time.Since(e.time(history.EventID{})) < recordTime {
		d.Detail = "no attempt is recorded yet"
	}
	// Without the filters of that time, the history may be younger than the event.
	if sink == nil || filters.areCurrent || !s.opts.History.RecordsAll() {
		return nil
	}
	return s.describeMissing(ctx, e, d, sink)
}

// describeMissing describes a delivery that the sink wanted, without any trace.
func (s *Service) describeMissing(ctx context.Context, e *eventState, d *adminapi.EventSink, sink *openSink) error {
	id, _ := history.ParseEventID(e.entry.ID)
	covered, err := s.opts.HistoryStore.Covers(ctx, id)
	if err != nil || !covered {
		return err
	}
	before, err := s.opts.Queues.DroppedBefore(ctx, e.partition, d.Sink)
	isDropped := err == nil && before != "" && streamid.Compare(e.entry.Cursor, before) < 0
	switch isCombined := sink.cfg.Digest.Wait > 0 || sink.cfg.Batch.Wait > 0 || sink.kind.DigestOverRate; {
	case isCombined && isDropped:
		d.Detail = "a batch or digest contains the event, or the full queue of the sink has dropped it"
	case isCombined:
		d.Detail = "a batch or digest may contain the event"
	case isDropped:
		d.State, d.Reason = adminapi.DeliveryDropped, "backlog"
		d.Detail = "the full queue of the sink dropped its oldest events; no attempt was recorded, but a node that has read this " +
			"event may still deliver it"
	}
	return err
}

// describeHold adds why a delivery waits.
func (s *Service) describeHold(ctx context.Context, d *adminapi.EventSink) error {
	state, err := s.opts.Deliveries.States.Get(ctx, d.Sink)
	if err != nil {
		return err
	}
	if sink := s.sinks.get(d.Sink); sink != nil {
		here := sink.stateOnNode(state.State)
		d.NextAttemptAt = laterTime(d.NextAttemptAt, here.nextAttemptAt)
		if here.state != adminapi.SinkActive {
			d.Reason, d.Detail = string(here.state), cmp.Or(here.reason, state.Reason)
		}
		return nil
	}
	d.Reason, d.Detail = "removed", "the sink is not in the configuration of this node"
	return nil
}

// laterTime returns the later of the time when a delivery is due, which may be nil, and the end of a hold, which may be zero.
func laterTime(due *time.Time, hold time.Time) *time.Time {
	if due == nil || !hold.After(*due) {
		return due
	}
	return &hold
}

// time returns when the event was stored.
func (e *eventState) time(id history.EventID) time.Time {
	if at, ok := streamid.ParsePosition(e.entry.Cursor); ok {
		return at.Time()
	}
	return id.Time()
}

// streams returns the number of clients of each node.
func (e *eventState) streams() []adminapi.EventStream {
	counts := make(map[string]int)
	for _, c := range e.Clients {
		counts[c.Node] += c.Count
	}
	list := []adminapi.EventStream{}
	for _, node := range slices.Sorted(maps.Keys(counts)) {
		list = append(list, adminapi.EventStream{Node: node, Clients: counts[node]})
	}
	return list
}
