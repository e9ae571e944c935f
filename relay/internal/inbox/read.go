package inbox

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/resp"
)

const (
	// MaxEntry is the number of bytes of an entry that [Store.Read] keeps. Whoever can write to Redis can make entries
	// of 512 MiB.
	MaxEntry = 1<<20 + 64<<10
	// maxReply is the number of bytes after which a reply is abandoned and the rest is requested again.
	maxReply = 4 << 20
)

// reader is the connection that reads the inbox.
type reader struct {
	mu    sync.Mutex
	conn  *resp.Conn // nil if not connected
	count int        // number of entries to request next
}

// Read returns up to count entries after an ID, and at most about 5 MiB. "" is the beginning. If the inbox has no such
// entry, it waits for up to block, which is at most [redisconn.MaxBlock] and at least a millisecond. Concurrent calls
// wait for each other.
func (s *Store) Read(ctx context.Context, after string, count int, block time.Duration) ([]Entry, error) {
	if after == "" {
		after = streamid.Zero
	}
	r := &s.reader
	r.mu.Lock()
	defer r.mu.Unlock()
	list, err := s.readStream(ctx, after, count, max(time.Millisecond, min(block, redisconn.MaxBlock)))
	if err != nil {
		r.closeConn()
		redisconn.ReloadSlots(ctx, s.conn.Readers()) // the slot may have moved
		return nil, redisconn.WrapError("read the inbox", err)
	}
	entries := make([]Entry, len(list))
	for i, e := range list {
		entries[i] = newEntry(e)
	}
	return entries, nil
}

func newEntry(e resp.Entry) Entry {
	entry := Entry{ID: e.ID}
	dataCount, keyCount := 0, 0
	resp.EachField(e.Body, func(key, value []byte) bool {
		switch string(key) {
		case "key":
			entry.Key = string(value)
			keyCount++
		case resp.FieldData:
			entry.Data = value
			dataCount++
		}
		return true
	})
	switch {
	case e.Omitted > 0: // a field may be missing
		size := int64(len(e.Body)) + e.Omitted
		entry.Problem = fmt.Sprintf("the entry has about %d bytes; at most %d are read", size, MaxEntry)
	case dataCount > 1 || keyCount > 1:
		entry.Problem = `the entry has several fields "data" or "key"; write one entry for each event`
	}
	if entry.Data == nil {
		entry.Fields = encodeFields(e.Body)
	}
	return entry
}

// encodeFields returns the fields of an entry as a JSON object.
func encodeFields(body []byte) []byte {
	fields := map[string]string{}
	resp.EachField(body, func(key, value []byte) bool {
		fields[string(key)] = string(value)
		return true
	})
	text, _ := json.Marshal(fields) // strings always marshal
	return text
}

func (s *Store) readStream(ctx context.Context, after string, count int, block time.Duration) ([]resp.Entry, error) {
	r, key := &s.reader, Key(s.keys)
	if r.conn == nil {
		node, err := redisconn.NodeFor(ctx, s.conn.Readers(), key)
		if err != nil {
			return nil, err
		}
		if r.conn, err = resp.Dial(ctx, node.Options()); err != nil {
			return nil, err
		}
		r.conn.LimitEntries(MaxEntry)
	}
	defer r.conn.CloseAfter(ctx)()
	request := count
	if r.count > 0 {
		request = min(count, r.count)
	}
	list, truncated, err := r.conn.ReadStream(key, after, request, block, maxReply)
	if truncated {
		r.closeConn()
	}
	r.count = nextCount(request, list)
	return list, err
}

// nextCount returns the number of entries to request next, so that a reply has at most maxReply bytes if no entry is
// larger than the largest of this one. It doubles at most.
func nextCount(count int, list []resp.Entry) int {
	largest := int64(1)
	for _, e := range list {
		largest = max(largest, int64(len(e.Body))+e.Omitted)
	}
	return max(1, min(2*count, int(maxReply/largest)))
}

func (r *reader) closeConn() {
	if r.conn != nil {
		_ = r.conn.Close()
		r.conn = nil
	}
}
