package inbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

const (
	// maxQuarantineEntries is the maximum number of entries of the quarantine.
	maxQuarantineEntries = 100_000
	// maxQuarantineBytes is the maximum memory of the quarantine in a large Redis.
	maxQuarantineBytes = 16 << 20
)

// ErrNotQuarantined is returned for an ID that is not in the quarantine.
var ErrNotQuarantined = errors.New("the entry is not in the quarantine")

// QuarantinedEntry is an entry of the quarantine.
type QuarantinedEntry struct {
	// ID is the ID of the entry in the quarantine. It is never used again.
	ID   string
	Time time.Time
	// Reason is a sentence for the producer.
	Reason string
	// InboxID is the ID that the entry had in the inbox. Source is the name of the source that it came from. One of them
	// is empty.
	InboxID, Source string
	// Key is the idempotency key of the producer. It may be empty.
	Key string
	// Data is the content that the producer sent. It may be truncated, and need not be JSON. Lists omit it.
	Data []byte
	// Size is the size of Data in bytes.
	Size int

	replayKey string // see NewReplayKey
}

// NewReplayKey returns a random idempotency key for the replay of an entry without a key. It is stored with the entry. Producers, who
// can only write to the inbox, cannot use it before.
func NewReplayKey() string { return "quarantine-" + rand.Text() }

// NewQuarantineTrimmer returns a trimmer of the quarantine, so neither a producer nor an upstream can fill Redis.
func NewQuarantineTrimmer(c *redisconn.Conn, keys keyspace.Space) *redisconn.StreamTrimmer {
	return redisconn.NewStreamTrimmer(c, QuarantineKey(keys), maxQuarantineEntries, maxQuarantineBytes)
}

// quarantineReadCount is the number of entries that a list reads at once, because each may have a megabyte.
const quarantineReadCount = 16

// ListQuarantine returns up to limit entries after an ID, the oldest first, without their data. "" is the beginning. The
// list is shorter than limit only at the end.
func (s *Store) ListQuarantine(ctx context.Context, after string, limit int) ([]QuarantinedEntry, error) {
	var list []QuarantinedEntry
	for len(list) < limit {
		start := "-"
		if after != "" {
			start = "(" + after
		}
		count := int64(min(quarantineReadCount, limit-len(list)))
		messages, err := s.conn.Commands().XRangeN(ctx, QuarantineKey(s.keys), start, "+", count).Result()
		if err != nil {
			return nil, redisconn.WrapError("list the quarantine", err)
		}
		if len(messages) == 0 {
			break
		}
		for _, m := range messages {
			e := decodeQuarantined(m)
			e.Data = nil
			list = append(list, e)
		}
		after = messages[len(messages)-1].ID
	}
	return list, nil
}

// isEntryID reports whether text is the ID of an entry as Redis writes it. Redis also accepts other forms, which mean
// different entries in different commands.
func isEntryID(text string) bool {
	position, ok := streamid.ParsePosition(text)
	return ok && position.String() == text
}

// GetQuarantined returns one entry, or [ErrNotQuarantined].
func (s *Store) GetQuarantined(ctx context.Context, id string) (QuarantinedEntry, error) {
	if !isEntryID(id) {
		return QuarantinedEntry{}, ErrNotQuarantined
	}
	messages, err := s.conn.Commands().XRangeN(ctx, QuarantineKey(s.keys), id, id, 1).Result()
	switch {
	case err != nil:
		return QuarantinedEntry{}, redisconn.WrapError("read the quarantine", err)
	case len(messages) == 0:
		return QuarantinedEntry{}, ErrNotQuarantined
	}
	return decodeQuarantined(messages[0]), nil
}

func decodeQuarantined(m redis.XMessage) QuarantinedEntry {
	text := func(name string) string { v, _ := m.Values[name].(string); return v }
	e := QuarantinedEntry{
		ID: m.ID, Reason: text("reason"), InboxID: text("inbox"), Source: text("source"), Key: text("key"), Data: []byte(text("data")),
		replayKey: text("replay_key"),
	}
	e.Size = len(e.Data)
	if at, ok := streamid.ParsePosition(m.ID); ok {
		e.Time = at.Time()
	}
	return e
}

// ReplayQuarantined adds data to the inbox, then removes the entry from the quarantine. The inbox entry has the idempotency key of the
// producer, or the replay key, so a repetition after a crash in between does not store a notification of the same hub twice. The error
// is [ErrNotQuarantined] if the entry was removed in the meantime.
func (s *Store) ReplayQuarantined(ctx context.Context, e QuarantinedEntry, data []byte) error {
	err := s.conn.WithReplication(ctx, Key(s.keys), func(c redisconn.Runner) error {
		return c.XAdd(ctx, &redis.XAddArgs{
			Stream: Key(s.keys), Values: []any{"data", data, "key", cmp.Or(e.Key, e.replayKey)},
		}).Err()
	})
	if err != nil {
		return redisconn.WrapError("write to the inbox", err)
	}
	missing, err := s.DropQuarantined(ctx, []string{e.ID})
	if err == nil && missing != nil {
		err = ErrNotQuarantined
	}
	return err
}

// DropQuarantined removes entries from the quarantine and returns the IDs that are not there.
func (s *Store) DropQuarantined(ctx context.Context, ids []string) (missing []string, err error) {
	pipe := s.conn.Commands().Pipeline()
	deleted := make([]*redis.IntCmd, len(ids))
	for i, id := range ids {
		if isEntryID(id) {
			deleted[i] = pipe.XDel(ctx, QuarantineKey(s.keys), id)
		}
	}
	if _, err = pipe.Exec(ctx); err != nil {
		return nil, redisconn.WrapError("remove entries from the quarantine", err)
	}
	for i, id := range ids {
		if deleted[i] == nil || deleted[i].Val() == 0 {
			missing = append(missing, id)
		}
	}
	return missing, nil
}
