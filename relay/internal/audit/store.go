package audit

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// Store is the stream of entries in Redis. It may be used concurrently.
type Store struct {
	client  redis.UniversalClient
	key     string
	maxLen  int64
	trimmer *redisconn.StreamTrimmer
}

// maxBytes is the maximum memory of the entries in a large Redis. Usual entries need 200 to 300 bytes.
const maxBytes = 64 << 20

// field is the field of a stream entry with the JSON.
const field = "entry"

// pageLen is the number of entries that a search reads at once. searchTime is the time after which it ends.
const (
	pageLen    = 1000
	searchTime = 2 * time.Second
)

// NewStore returns the store of about maxLen entries with at most 64 MiB, or a sixteenth of the memory of Redis. With 0, Redis
// keeps no entries: Append discards them, and Search returns 503.not-enabled.
func NewStore(c *redisconn.Conn, maxLen int64) *Store {
	key := Key(c.Keys())
	return &Store{
		client: c.Commands(), key: key, maxLen: maxLen, trimmer: redisconn.NewStreamTrimmer(c, key, maxLen, maxBytes),
	}
}

// Key is the stream of audit entries.
func Key(k keyspace.Space) string { return k.Global("audit") }

// Append stores entries and drops the oldest beyond the maximum.
func (s *Store) Append(ctx context.Context, lines [][]byte) error {
	if s.maxLen == 0 {
		return nil
	}
	added := 0
	_, err := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, line := range lines {
			added += len(line)
			pipe.XAdd(ctx, &redis.XAddArgs{
				Stream: s.key, MaxLen: s.maxLen, Approx: true, Values: []any{field, line},
			})
		}
		return nil
	})
	if err != nil {
		return redisconn.WrapError("store the audit log", err)
	}
	s.trimmer.Trim(ctx, len(lines), added)
	return nil
}

// Search returns up to [Filter.Limit] entries that match, the newest first. next is [Filter.After] for older ones, or empty at
// the end. After two seconds it returns the entries found so far.
func (s *Store) Search(ctx context.Context, f Filter) (list []Entry, next string, err error) {
	if s.maxLen == 0 {
		return nil, "", relay.NewError(relay.CodeNotEnabled, "audit.max_len is 0, so Redis keeps no entries: see audit.file")
	}
	end := "+"
	if f.After != "" {
		end = "(" + f.After
	}
	for began := time.Now(); ; {
		if end != "+" { // XREVRANGE would search all entries if they are after end
			older, err := s.client.XRangeN(ctx, s.key, "-", end, 1).Result()
			if err != nil || len(older) == 0 {
				return list, "", redisconn.WrapError("search the audit log", err)
			}
		}
		page, err := s.client.XRevRangeN(ctx, s.key, end, "-", pageLen).Result()
		if err != nil {
			return nil, "", redisconn.WrapError("search the audit log", err)
		}
		for _, m := range page {
			text, _ := m.Values[field].(string)
			var e Entry
			if json.Unmarshal([]byte(text), &e) != nil {
				continue // another program wrote it
			}
			e.ID = m.ID
			if e.Time.Before(f.Since) {
				return list, "", nil
			}
			if !f.matches(&e) {
				continue
			}
			if len(list) == f.Limit {
				return list, list[len(list)-1].ID, nil
			}
			list = append(list, e)
		}
		if len(page) < pageLen {
			return list, "", nil
		}
		last := page[len(page)-1].ID
		if time.Since(began) > searchTime {
			return list, last, nil
		}
		end = "(" + last
	}
}

func (f *Filter) matches(e *Entry) bool {
	return (f.Actor == "" || f.Actor == e.Actor) && (f.AccountID == "" || f.AccountID == e.AccountID) &&
		(f.Address == "" || f.Address == e.Address) && (f.Target == "" || f.Target == e.Target) &&
		(f.Action == "" || f.Action == string(e.Action) || strings.HasPrefix(string(e.Action), f.Action+"."))
}
