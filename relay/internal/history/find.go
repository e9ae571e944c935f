package history

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/resp"
)

const (
	// clockSkew is the maximum time by which the clock of Redis may be slower than the clock of a node.
	clockSkew = time.Minute
	// findCount is the number of blocks of one read, which ends after maxFindBytes.
	findCount    = 2000
	maxFindBytes = 16 << 20
)

// Found contains the records of an event.
type Found struct {
	// Attempts and Drops are sorted by time.
	Attempts []*Attempt
	Drops    []*Drop
	Clients  []*Clients
	// Incomplete reports that the history was too large to be read in time.
	Incomplete bool
}

// Find returns the records of an event, after about two seconds at most. Malformed records are ignored.
func (s *Store) Find(ctx context.Context, id EventID) (Found, error) {
	deadline := time.Now().Add(searchTime)
	start := strconv.FormatInt(max(id.Time().Add(-clockSkew).UnixMilli(), 0), 10)
	f := finder{store: s, id: id}
	for {
		key := Key(s.keys, id.shardNumber())
		entries, err := resp.ReadEntries(ctx, s.conn.Commands(), maxFindBytes, "XRANGE", key, start, "+", "COUNT", findCount)
		if err != nil {
			return f.found, redisconn.WrapError("read the history", err)
		}
		for _, e := range entries {
			if err := f.addRecords(ctx, e); err != nil {
				return f.found, err
			}
		}
		f.found.Incomplete = len(entries) > 0 && time.Now().After(deadline)
		if len(entries) == 0 || f.found.Incomplete {
			f.found.sort()
			return f.found, nil
		}
		start = "(" + entries[len(entries)-1].ID
	}
}

// Covers reports whether the history still has the records since the time of an event, apart from lost ones.
func (s *Store) Covers(ctx context.Context, id EventID) (bool, error) {
	info, err := redisconn.ReadStreamInfo(ctx, s.conn.Commands(), Key(s.keys, id.shardNumber()))
	if err != nil {
		return false, redisconn.WrapError("read the state of the history", err)
	}
	first, _ := streamid.ParsePosition(info.FirstID)
	return info.TotalAdded == info.Length || info.Length > 0 && int64(first.MS) <= id.unixMilli(), nil
}

// finder collects the records of an event.
type finder struct {
	store       *Store
	id          EventID
	found       Found
	loadedNames bool
}

// addRecords adds the records of the event in one block.
func (f *finder) addRecords(ctx context.Context, e resp.Entry) error {
	b := blockOf(e)
	for {
		raw, err := b.next()
		if err != nil || raw == nil {
			return nil // the rest is malformed, or there is no more
		}
		if !raw.isOf(f.id) {
			continue
		}
		record, err := raw.decode(b.node, f.store.names)
		if err != nil && !f.loadedNames { // another node may have added a name
			f.loadedNames = true
			if err := f.store.names.loadAll(ctx); err != nil {
				return err
			}
			record, _ = raw.decode(b.node, f.store.names)
		}
		switch {
		case record.Attempt != nil:
			f.found.Attempts = append(f.found.Attempts, record.Attempt)
		case record.Drop != nil:
			f.found.Drops = append(f.found.Drops, record.Drop)
		case record.Clients != nil:
			f.found.Clients = append(f.found.Clients, record.Clients)
		}
	}
}

// blockOf returns the block in an entry of a stream. It is empty if it is malformed.
func blockOf(e resp.Entry) (b block) {
	resp.EachField(e.Body, func(key, value []byte) bool {
		if string(key) == field {
			b, _ = parseBlock(value)
		}
		return true
	})
	return b
}

// Event returns the event of the records. It returns false if there are none.
func (f *Found) Event() (EventRef, bool) {
	switch {
	case len(f.Attempts) > 0:
		return f.Attempts[0].Event, true
	case len(f.Drops) > 0:
		return f.Drops[0].Event, true
	case len(f.Clients) > 0:
		return f.Clients[0].Event, true
	}
	return EventRef{}, false
}

func (f *Found) sort() {
	slices.SortStableFunc(f.Attempts, func(a, b *Attempt) int { return a.Time.Compare(b.Time) })
	slices.SortStableFunc(f.Drops, func(a, b *Drop) int { return a.Time.Compare(b.Time) })
	slices.SortStableFunc(f.Clients, func(a, b *Clients) int { return cmp.Compare(a.Node, b.Node) })
}
