package delivery

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/history"
)

// Selection selects deliveries.
type Selection struct {
	// Sink is a name. Empty selects all sinks.
	Sink string
	// States select all states of [ListedStates] if they are empty.
	States []adminapi.DeliveryState
	// Topics without a pattern select all topics.
	Topics relay.Patterns
	// Since is the earliest last attempt, or for deliveries without attempts the earliest event. Zero is no limit.
	Since time.Time
	// After is the next of the previous page. Limit is positive.
	After string
	Limit int
}

// ListedStates returns the states that a list can have, in its order.
func ListedStates() []adminapi.DeliveryState {
	return []adminapi.DeliveryState{
		adminapi.DeliveryRetrying, adminapi.DeliveryWaiting, adminapi.DeliveryDead, adminapi.DeliveryDropped,
		adminapi.DeliveryDelivered,
	}
}

// listTime is the time after which [Service.ListDeliveries] returns what it has found.
const listTime = 2 * time.Second

// listPlace is a place in a list: the deliveries of a state of a sink after At, whose format depends on the state.
type listPlace struct {
	Sink  string
	State adminapi.DeliveryState
	At    string
}

func (p listPlace) encode() string {
	text, _ := json.Marshal(p) // strings always marshal
	return base64.RawURLEncoding.EncodeToString(text)
}

// ListDeliveries returns a page of deliveries. The error is [history.ErrInvalidCursor] for an invalid After, and 404.sink for
// an unknown sink.
func (s *Service) ListDeliveries(
	ctx context.Context, sel Selection,
) (page adminapi.Page[adminapi.Delivery], err error) {
	deadline := time.Now().Add(listTime)
	places, err := s.listPlaces(ctx, &sel)
	if err != nil {
		return page, err
	}
	for i, place := range places {
		for {
			limit := sel.Limit - len(page.Data)
			list, next, err := s.listState(ctx, &sel, place, limit)
			if err != nil {
				return page, err
			}
			page.Data = append(page.Data, list...)
			if place.At = next; next == "" {
				break
			}
			if len(page.Data) >= sel.Limit || time.Now().After(deadline) {
				page.Next = place.encode()
				return page, nil
			}
		}
		if i+1 < len(places) && (len(page.Data) >= sel.Limit || time.Now().After(deadline)) {
			page.Next = places[i+1].encode()
			return page, nil
		}
	}
	return page, nil
}

// listPlaces returns the places of all selected sinks and states from After on.
func (s *Service) listPlaces(ctx context.Context, sel *Selection) (places []listPlace, err error) {
	sinks := []string{sel.Sink}
	if sel.Sink == "" {
		sinks, err = s.SinkNames(ctx)
	} else {
		err = s.requireKnown(ctx, sel.Sink)
	}
	if err != nil {
		return nil, err
	}
	for _, sink := range sinks {
		for _, state := range ListedStates() {
			if sel.wantsState(state) {
				places = append(places, listPlace{Sink: sink, State: state})
			}
		}
	}
	if sel.After == "" {
		return places, nil
	}
	var from listPlace
	text, err := base64.RawURLEncoding.DecodeString(sel.After)
	if err != nil || json.Unmarshal(text, &from) != nil || !slices.Contains(ListedStates(), from.State) {
		return nil, history.ErrInvalidCursor
	}
	// A sink that was removed in the meantime is skipped.
	places = slices.DeleteFunc(places, func(p listPlace) bool {
		return p.Sink < from.Sink || p.Sink == from.Sink &&
			slices.Index(ListedStates(), p.State) < slices.Index(ListedStates(), from.State)
	})
	if len(places) > 0 && places[0].Sink == from.Sink && places[0].State == from.State {
		places[0].At = from.At
	}
	return places, nil
}

// listState returns up to about limit deliveries of a state of a sink.
func (s *Service) listState(
	ctx context.Context, sel *Selection, place listPlace, limit int,
) (list []adminapi.Delivery, next string, err error) {
	switch place.State {
	case adminapi.DeliveryWaiting:
		list, next, err = s.listWaiting(ctx, place, limit)
	case adminapi.DeliveryRetrying:
		list, next, err = s.listRetrying(ctx, place, limit)
	case adminapi.DeliveryDead:
		list, next, err = s.listDead(ctx, sel, place, limit)
	default:
		return s.listComplete(ctx, sel, place, limit)
	}
	return slices.DeleteFunc(list, func(d adminapi.Delivery) bool { return !sel.selects(&d) }), next, err
}

func (sel *Selection) wantsState(state adminapi.DeliveryState) bool {
	return len(sel.States) == 0 || slices.Contains(sel.States, state)
}

func (sel *Selection) selects(d *adminapi.Delivery) bool {
	if !sel.wantsState(d.State) || !sel.matchesTopic(d.Topic) {
		return false
	}
	if sel.Since.IsZero() {
		return true
	}
	at := relay.Notification{ID: cmp.Or(d.EventID, d.DeliveryID)}.StoredAt()
	if d.LastAttemptAt != nil {
		at = *d.LastAttemptAt
	}
	return !at.Before(sel.Since)
}

func (sel *Selection) matchesTopic(topic string) bool {
	return sel.Topics.String() == "" || sel.Topics.Match(topic)
}

// listWaiting lists the open digests of a sink, then its queue, partition by partition.
func (s *Service) listWaiting(
	ctx context.Context, place listPlace, limit int,
) (list []adminapi.Delivery, next string, err error) {
	if number, ok := strings.CutPrefix(place.At, digestsPrefix); ok || place.At == "" {
		return s.listDigests(ctx, place.Sink, number, limit)
	}
	partition, after := 0, ""
	if place.At != "" {
		number, cursor, _ := strings.Cut(place.At, ":")
		if partition, err = strconv.Atoi(number); err != nil || partition < 0 || cursor != "" && !streamid.IsValid(cursor) {
			return nil, "", history.ErrInvalidCursor
		}
		after = cursor
	}
	for ; partition < s.keys.Partitions(); partition++ {
		queued, err := s.opts.Queues.List(ctx, partition, place.Sink, after, limit)
		if err != nil {
			return nil, "", err
		}
		for _, n := range queued {
			list = append(list, adminapi.Delivery{
				EventID: n.ID, Sink: place.Sink, Topic: n.Topic, State: adminapi.DeliveryWaiting,
			})
		}
		if len(queued) > 0 {
			return list, fmt.Sprintf("%d:%s", partition, queued[len(queued)-1].Cursor), nil
		}
		after = ""
	}
	return list, "", nil
}

// digestsPrefix begins a place among the open digests, before their number. "0:" is the place after all of them.
const digestsPrefix = "digests:"

func (s *Service) listDigests(
	ctx context.Context, sink, number string, limit int,
) (list []adminapi.Delivery, next string, err error) {
	skipped := 0
	if number != "" {
		if skipped, err = strconv.Atoi(number); err != nil || skipped < 0 {
			return nil, "", history.ErrInvalidCursor
		}
	}
	open, err := s.opts.Deliveries.Digests.List(ctx, sink, skipped, limit)
	if err != nil {
		return nil, "", err
	}
	for _, d := range open {
		if d.Count > 0 {
			list = append(list, adminapi.Delivery{
				DeliveryID: d.ID, Sink: sink, State: adminapi.DeliveryWaiting, NextAttemptAt: &d.SealAt, DigestEvents: d.Count,
			})
		}
	}
	if len(open) == 0 {
		return nil, "0:", nil
	}
	return list, digestsPrefix + strconv.Itoa(skipped+len(open)), nil
}

// listRetrying lists the retry queue of a sink. A batch or digest is one line for each of its events.
func (s *Service) listRetrying(
	ctx context.Context, place listPlace, limit int,
) (list []adminapi.Delivery, next string, err error) {
	scheduled, next, err := s.opts.Deliveries.Retries.List(ctx, place.Sink, place.At, limit)
	if errors.Is(err, store.ErrSelection) {
		return nil, "", history.ErrInvalidCursor
	}
	var holdEnd time.Time
	if sink := s.sinks.get(place.Sink); sink != nil {
		holdEnd = sink.stateOnNode(store.StateActive).nextAttemptAt
	}
	for _, one := range scheduled {
		d := adminapi.Delivery{Sink: place.Sink, State: adminapi.DeliveryRetrying}
		if !one.DueAt.IsZero() {
			d.NextAttemptAt = laterTime(&one.DueAt, holdEnd)
		}
		if one.Record == nil {
			d.DeliveryID, d.Error = one.ID, "the stored delivery cannot be decoded"
			list = append(list, d)
			continue
		}
		if n := len(one.Record.Attempts); n > 0 {
			last := one.Record.Attempts[n-1]
			d.Attempts, d.LastAttemptAt = one.Record.AttemptCount, &last.Time
			d.Status, d.Error = last.Status, last.Error
		}
		for _, n := range one.Record.Notifications {
			d.EventID, d.Topic = n.ID, n.Topic
			if d.DeliveryID = one.ID; one.ID == n.ID {
				d.DeliveryID = ""
			}
			list = append(list, d)
		}
	}
	return list, next, err
}

// listDead lists the dead letters of a sink. One with several events is one line with the first of them.
func (s *Service) listDead(
	ctx context.Context, sel *Selection, place listPlace, limit int,
) (list []adminapi.Delivery, next string, err error) {
	page, err := s.opts.Deliveries.DeadLetters.List(ctx, place.Sink,
		store.Selection{Since: sel.Since, After: place.At, Limit: limit, NewestFirst: true})
	if errors.Is(err, store.ErrSelection) {
		return nil, "", history.ErrInvalidCursor
	}
	for _, l := range page.Letters {
		d := adminapi.Delivery{
			EventID: l.Event, Sink: place.Sink, Topic: l.Topic, State: adminapi.DeliveryDead, Attempts: l.Attempts,
			LastAttemptAt: &l.LastAttemptAt, Status: l.Status, Reason: l.Reason, Error: l.Error,
		}
		if l.ID != l.Event {
			d.DeliveryID = l.ID
		}
		list = append(list, d)
	}
	return list, page.Next, err
}

// listComplete lists the deliveries in the history that are delivered or dropped.
func (s *Service) listComplete(
	ctx context.Context, sel *Selection, place listPlace, limit int,
) (list []adminapi.Delivery, next string, err error) {
	matches := func(e *history.EventRef, sink string, at time.Time) bool {
		return sink == place.Sink && !at.Before(sel.Since) && sel.matchesTopic(e.Topic)
	}
	found, err := s.opts.HistoryStore.ListRecords(ctx, history.Selection{
		Since: sel.Since, After: place.At, Limit: limit,
		Matches: func(r history.Record) bool {
			if d := r.Drop; d != nil {
				return place.State == adminapi.DeliveryDropped && matches(&d.Event, d.Sink, d.Time)
			}
			a := r.Attempt
			return place.State == adminapi.DeliveryDelivered && a.State == history.StateDelivered && matches(&a.Event, a.Sink, a.Time)
		},
	})
	for _, r := range found.Records {
		if d := r.Drop; d != nil {
			list = append(list, adminapi.Delivery{
				EventID: d.Event.ID.String(), Sink: d.Sink, Topic: d.Event.Topic, State: place.State,
				Attempts: d.Attempts, LastAttemptAt: &d.Time, Reason: d.Reason,
			})
			continue
		}
		a := r.Attempt
		d := adminapi.Delivery{
			EventID: a.Event.ID.String(), Sink: a.Sink, Topic: a.Event.Topic, State: place.State, Attempts: a.Number,
			LastAttemptAt: &a.Time, Status: a.Status,
		}
		if a.Delivery != (history.EventID{}) {
			d.DeliveryID = a.Delivery.String()
		}
		list = append(list, d)
	}
	return list, found.Next, err
}
