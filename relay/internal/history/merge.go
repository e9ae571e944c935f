package history

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/streamid"
)

// position is a place in several streams that are read backwards as one: descending stream IDs, and descending numbers of
// streams for equal ones.
type position struct {
	streamid.Position
	stream int
}

// String returns the text of a cursor.
func (p position) String() string { return p.Position.String() + "." + strconv.Itoa(p.stream) }

func (p position) isBefore(q position) bool {
	if order := p.Compare(q.Position); order != 0 {
		return order > 0
	}
	return p.stream > q.stream
}

// next returns the position after which p is the next place.
func (p position) next() position { return position{p.Position, p.stream + 1} }

// parsePosition parses the text of a cursor. It returns false for another text.
func parsePosition(text string) (position, bool) {
	id, number, _ := strings.Cut(text, ".")
	at, ok := streamid.ParsePosition(id)
	stream, err := strconv.Atoi(number)
	return position{at, stream}, ok && err == nil && stream >= 0
}

// streamReader reads a stream backwards.
type streamReader[Entry any] struct {
	stream int
	list   []Entry  // not visited yet
	head   position // of list[0]
	end    string   // of the next read, as XREVRANGE takes it
}

// mergedStreams reads several streams backwards as one.
type mergedStreams[Entry any] struct {
	// read returns entries of a stream, the newest first. It returns none only at the end.
	read func(ctx context.Context, stream int, end string) ([]Entry, error)
	// idOf returns the stream ID of an entry.
	idOf func(Entry) string

	readers []*streamReader[Entry]
}

// open starts to read after a position, or at end if that is nil. end is a stream ID as XREVRANGE takes it.
func (m *mergedStreams[Entry]) open(ctx context.Context, streams []int, after *position, end string) error {
	for _, stream := range streams {
		r := &streamReader[Entry]{stream: stream, end: end}
		if after != nil {
			r.end = after.Position.String()
			if stream >= after.stream {
				r.end = "(" + r.end
			}
		}
		m.readers = append(m.readers, r)
		if err := m.fill(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

func (m *mergedStreams[Entry]) fill(ctx context.Context, r *streamReader[Entry]) error {
	var err error
	if r.list, err = m.read(ctx, r.stream, r.end); err != nil {
		return err
	}
	if n := len(r.list); n > 0 {
		r.end = "(" + m.idOf(r.list[n-1])
		m.setHead(r)
	}
	return nil
}

func (m *mergedStreams[Entry]) setHead(r *streamReader[Entry]) {
	at, _ := streamid.ParsePosition(m.idOf(r.list[0]))
	r.head = position{at, r.stream}
}

// next returns the reader with the newest entry, which is its list[0]. It returns nil if there are no entries since a time.
func (m *mergedStreams[Entry]) next(since time.Time) *streamReader[Entry] {
	m.readers = slices.DeleteFunc(m.readers, func(r *streamReader[Entry]) bool {
		return len(r.list) == 0 || !since.IsZero() && r.head.Time().Before(since)
	})
	if len(m.readers) == 0 {
		return nil
	}
	return slices.MinFunc(m.readers, func(a, b *streamReader[Entry]) int {
		if a.head.isBefore(b.head) {
			return -1
		}
		return 1
	})
}

// advance removes the newest entry of a reader.
func (m *mergedStreams[Entry]) advance(ctx context.Context, r *streamReader[Entry]) error {
	if r.list = r.list[1:]; len(r.list) == 0 {
		return m.fill(ctx, r)
	}
	m.setHead(r)
	return nil
}
