// Package history records what happens to events, and finds events and their history.
package history

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
)

const (
	// searchTime is the time after which a search returns what it has found.
	searchTime = 2 * time.Second
	// maxReadCount and minReadCount limit the number of entries of one read. Together, the partitions hold about
	// maxReadCount entries in memory.
	maxReadCount = 1000
	minReadCount = 10
)

// ErrInvalidCursor is returned for a cursor that no search has returned.
var ErrInvalidCursor = errors.New("this is not a cursor of a search")

// Query selects events. A zero field selects all events.
type Query struct {
	Filter relay.Filter
	// DNSZone, Object and Publisher are compared literally. Publisher is a name, such as "ops", or kind and name, such as
	// "key ops".
	DNSZone, Object, Publisher string
	// Since and Until limit the time at which events were stored, which is before Until.
	Since, Until time.Time
	// Before is the Next of the previous result.
	Before string
	// Limit is the maximum number of events. It is positive.
	Limit int
}

// Event is an event in the log.
type Event struct {
	eventlog.Entry
	// Time is when Redis stored the event.
	Time     time.Time
	ObjectID string
}

// Describe returns e for the admin API.
func (e *Event) Describe() adminapi.Event {
	return adminapi.Event{
		ID: e.ID, Time: e.Time, Topic: e.Topic, HubID: e.Hub, AccountID: e.Account, ObjectID: e.ObjectID,
		Publisher: adminapi.Publisher{Kind: e.Publisher.Kind, Name: e.Publisher.Name},
	}
}

// Result is a part of the events that match a query.
type Result struct {
	// Events are the newest first.
	Events []Event
	// Next continues the search. It is empty if there are no older events.
	Next string
	// SearchedTo is the time of the oldest entry that was compared. It is zero if there was none.
	SearchedTo time.Time
}

// Searcher searches the log, which has no index, from its end. It may be used concurrently.
type Searcher struct {
	log  *eventlog.Log
	keys keyspace.Space
}

// NewSearcher returns a searcher of all partitions.
func NewSearcher(l *eventlog.Log, keys keyspace.Space) *Searcher { return &Searcher{l, keys} }

// Search returns the newest events that match. It returns after about two seconds with the events that it has found by
// then. The error is [ErrInvalidCursor] or means that Redis is unreachable.
func (s *Searcher) Search(ctx context.Context, q Query) (Result, error) {
	deadline := time.Now().Add(searchTime)
	partitions := s.partitionsOf(q)
	count := max(minReadCount, maxReadCount/len(partitions))
	merged := mergedStreams[eventlog.Entry]{
		read: func(ctx context.Context, partition int, end string) ([]eventlog.Entry, error) {
			return s.log.ReadBefore(ctx, partition, end, count)
		},
		idOf: func(e eventlog.Entry) string { return e.Cursor },
	}
	end := "+"
	if !q.Until.IsZero() {
		end = fmt.Sprintf("(%d-0", max(q.Until.UnixMilli(), 0))
	}
	var after *position
	if q.Before != "" {
		p, ok := parsePosition(q.Before)
		if !ok {
			return Result{}, ErrInvalidCursor
		}
		after = &p
	}
	if err := merged.open(ctx, partitions, after, end); err != nil {
		return Result{}, err
	}
	match := newMatcher(q)
	var result Result
	for {
		newest := merged.next(q.Since)
		if newest == nil {
			result.Next = ""
			return result, nil
		}
		if len(result.Events) == q.Limit || result.Next != "" && time.Now().After(deadline) {
			return result, nil
		}
		result.Next, result.SearchedTo = newest.head.String(), newest.head.Time()
		if e, ok := match(newest.list[0], newest.head); ok {
			result.Events = append(result.Events, e)
		}
		if err := merged.advance(ctx, newest); err != nil {
			return Result{}, err
		}
	}
}

// partitionsOf returns the partitions that can have matching events.
func (s *Searcher) partitionsOf(q Query) (partitions []int) {
	for _, hub := range q.Filter.Hubs {
		partitions = append(partitions, s.keys.Partition(hub))
	}
	if len(partitions) > 0 {
		slices.Sort(partitions)
		return slices.Compact(partitions)
	}
	for p := range s.keys.Partitions() {
		partitions = append(partitions, p)
	}
	return partitions
}

// newMatcher returns a function that reports whether an entry matches.
func newMatcher(q Query) func(eventlog.Entry, position) (Event, bool) {
	var words [][]byte // the data of every matching event contains all of them
	for _, list := range [][]string{
		{q.Object}, {q.DNSZone}, q.Filter.Containers, q.Filter.Environments, q.Filter.Clusters,
	} {
		if len(list) == 1 && isPlain(list[0]) {
			words = append(words, []byte(list[0]))
		}
	}
	return func(e eventlog.Entry, at position) (Event, bool) {
		if q.Publisher != "" && q.Publisher != e.Publisher.Name && q.Publisher != e.Publisher.String() {
			return Event{}, false
		}
		for _, word := range words { // much faster than decoding, but data with escapes must be decoded
			if !bytes.Contains(e.Data, word) && !bytes.Contains(e.Data, []byte(`\u`)) {
				return Event{}, false
			}
		}
		if !q.Filter.Match(e.Notification) {
			return Event{}, false
		}
		envelope, err := e.Envelope()
		if q.Object != "" && (err != nil || envelope.Object.ID != q.Object) ||
			q.DNSZone != "" && (err != nil || !slices.Contains(envelope.Context.DNSZones, q.DNSZone)) {
			return Event{}, false
		}
		return Event{Entry: e, Time: at.Time(), ObjectID: envelope.Object.ID}, true
	}
}

// isPlain reports whether a value has the same bytes in every JSON text without \u escapes.
func isPlain(value string) bool {
	for i := range len(value) {
		switch c := value[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '.', c == ':':
		default:
			return false
		}
	}
	return value != ""
}
