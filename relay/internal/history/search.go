// Package history finds events and what happened to them.
package history

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
)

const (
	// searchTime is the time after which [Searcher.Search] returns what it has found.
	searchTime = 2 * time.Second
	// maxReadCount and minReadCount limit the number of entries of one read. Together, the partitions hold about
	// maxReadCount entries in memory.
	maxReadCount = 1000
	minReadCount = 10
)

// ErrInvalidCursor is returned for a cursor that [Searcher.Search] has not returned.
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

// position is a place in the order of a search: descending stream IDs, and descending partitions for equal ones.
type position struct {
	streamid.Position
	partition int
}

// String returns the text of a cursor.
func (p position) String() string { return p.Position.String() + "." + strconv.Itoa(p.partition) }

func (p position) time() time.Time { return time.UnixMilli(int64(min(p.MS, 1<<62))).UTC() }

func (p position) isBefore(q position) bool {
	if order := p.Compare(q.Position); order != 0 {
		return order > 0
	}
	return p.partition > q.partition
}

func parsePosition(text string) (position, error) {
	id, number, _ := strings.Cut(text, ".")
	at, ok := streamid.ParsePosition(id)
	partition, err := strconv.Atoi(number)
	if !ok || err != nil || partition < 0 {
		return position{}, ErrInvalidCursor
	}
	return position{at, partition}, nil
}

// Search returns the newest events that match. It returns after about two seconds with the events that it has found by
// then. The error is [ErrInvalidCursor] or means that Redis is unreachable.
func (s *Searcher) Search(ctx context.Context, q Query) (Result, error) {
	deadline := time.Now().Add(searchTime)
	readers, err := s.newReaders(q)
	if err != nil {
		return Result{}, err
	}
	for _, r := range readers {
		if err := r.fill(ctx, s.log); err != nil {
			return Result{}, err
		}
	}
	match := newMatcher(q)
	var result Result
	for {
		readers = slices.DeleteFunc(readers, func(r *partitionReader) bool { return r.isAtEnd(q.Since) })
		if len(readers) == 0 {
			result.Next = ""
			return result, nil
		}
		if len(result.Events) == q.Limit || result.Next != "" && time.Now().After(deadline) {
			return result, nil
		}
		next := slices.MinFunc(readers, func(a, b *partitionReader) int {
			if a.head.isBefore(b.head) {
				return -1
			}
			return 1
		})
		result.Next, result.SearchedTo = next.head.String(), next.head.time()
		if e, ok := match(next.list[0], next.head); ok {
			result.Events = append(result.Events, e)
		}
		if err := next.advance(ctx, s.log); err != nil {
			return Result{}, err
		}
	}
}

func (s *Searcher) newReaders(q Query) ([]*partitionReader, error) {
	partitions := make([]int, 0, s.keys.Partitions())
	if hubs := q.Filter.Hubs; len(hubs) > 0 {
		for _, hub := range hubs {
			partitions = append(partitions, s.keys.Partition(hub))
		}
		slices.Sort(partitions)
		partitions = slices.Compact(partitions)
	} else {
		for p := range s.keys.Partitions() {
			partitions = append(partitions, p)
		}
	}
	end := "+"
	if !q.Until.IsZero() {
		end = fmt.Sprintf("(%d-0", max(q.Until.UnixMilli(), 0))
	}
	var before position
	if q.Before != "" {
		var err error
		if before, err = parsePosition(q.Before); err != nil {
			return nil, err
		}
	}
	readers := make([]*partitionReader, len(partitions))
	for i, p := range partitions {
		r := &partitionReader{partition: p, end: end, count: max(minReadCount, maxReadCount/len(partitions))}
		if q.Before != "" {
			r.end = before.Position.String()
			if p >= before.partition {
				r.end = "(" + r.end
			}
		}
		readers[i] = r
	}
	return readers, nil
}

// partitionReader reads the log of a partition backwards.
type partitionReader struct {
	partition int
	list      []eventlog.Entry // not compared yet
	head      position         // of list[0]
	end       string           // of the next read
	count     int
}

func (r *partitionReader) fill(ctx context.Context, l *eventlog.Log) error {
	var err error
	if r.list, err = l.ReadBefore(ctx, r.partition, r.end, r.count); err != nil {
		return err
	}
	if n := len(r.list); n > 0 {
		r.end = "(" + r.list[n-1].Cursor
		r.setHead()
	}
	return nil
}

func (r *partitionReader) setHead() {
	at, _ := streamid.ParsePosition(r.list[0].Cursor)
	r.head = position{at, r.partition}
}

func (r *partitionReader) isAtEnd(since time.Time) bool {
	return len(r.list) == 0 || !since.IsZero() && r.head.time().Before(since)
}

func (r *partitionReader) advance(ctx context.Context, l *eventlog.Log) error {
	if r.list = r.list[1:]; len(r.list) == 0 {
		return r.fill(ctx, l)
	}
	r.setHead()
	return nil
}

// newMatcher returns a function that reports whether an entry matches.
func newMatcher(q Query) func(eventlog.Entry, position) (Event, bool) {
	var words [][]byte // a matching event contains one of each list of values
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
		for _, word := range words { // much faster than decoding
			if !bytes.Contains(e.Data, word) {
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
		return Event{Entry: e, Time: at.time(), ObjectID: envelope.Object.ID}, true
	}
}

// isPlain reports whether a value has the same bytes in every JSON text.
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
