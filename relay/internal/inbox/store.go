// Package inbox stores the inbox, the stream that any producer may write to, and the quarantine for entries that were
// rejected.
//
// Validation does not belong here; see package ingest.
package inbox

import (
	"context"
	_ "embed" // the scripts
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/internal/logsample"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

var (
	//go:embed scripts/append.lua
	appendSource string
	//go:embed scripts/quarantine.lua
	quarantineSource string
	//go:embed scripts/reset.lua
	resetSource string

	appendScript     = redisconn.NewScript(streamid.CompareLua + appendSource)
	resetScript      = redisconn.NewScript(resetSource)
	quarantineScript = redisconn.NewScript(streamid.CompareLua + quarantineSource)
)

// Entry is an inbox entry as a producer wrote it.
type Entry struct {
	ID string
	// Data is the JSON of the notification, or nil if the field is missing.
	Data []byte
	// Fields is a JSON object of all fields if Data is nil. It shows what a producer sent with a wrong name.
	Fields []byte
	// Key is the idempotency key of the producer. It may be empty.
	Key string
	// Problem explains why the entry cannot be used, whatever its data contains. It is empty for other entries.
	Problem string
}

// Notification is a valid inbox entry.
type Notification struct {
	InboxID string
	// Key is the idempotency key, scoped by the caller. It may be empty. An entry whose key was used in the same
	// partition within [eventlog.IdempotencyTime] is a repeat.
	Key          string
	Notification relay.Notification
}

// RejectedEntry is an invalid inbox entry.
type RejectedEntry struct {
	InboxID string
	Data    []byte
	// Reason is a sentence for the producer.
	Reason string
	// Key is the idempotency key of the producer. It may be empty.
	Key string
}

// Result counts processed inbox entries.
type Result struct {
	// Stored is the number of new entries.
	Stored int
	// Skipped is the number of entries that were stored before, by a reader that did not remove them from the inbox.
	Skipped int
	// Duplicates are the inbox IDs of the entries whose key was known.
	Duplicates []string
}

// Store is the inbox with its quarantine. It may be used concurrently.
type Store struct {
	conn *redisconn.Conn
	keys keyspace.Space

	reader   reader
	trimmer  *redisconn.StreamTrimmer
	resetLog *logsample.Limiter
}

// maxResetLines is the number of lines per minute about an inbox that starts again, which a producer can cause at any rate.
const maxResetLines = 10

// NewStore returns the inbox.
func NewStore(c *redisconn.Conn, keys keyspace.Space) *Store {
	return &Store{
		conn: c, keys: keys, trimmer: NewQuarantineTrimmer(c, keys),
		resetLog: logsample.New(maxResetLines, time.Minute, nil),
	}
}

// Keys returns the names of the keys.
func (s *Store) Keys() keyspace.Space { return s.keys }

// IsLarge reports whether the inbox needs more memory in Redis than a number of bytes, or may need it because only a part can be
// measured.
func (s *Store) IsLarge(ctx context.Context, bytes int64) (bool, error) {
	n, err := s.conn.Commands().XLen(ctx, Key(s.keys)).Result()
	if err != nil {
		return false, redisconn.WrapError("measure the inbox", err)
	}
	if n > redisconn.MemorySamples {
		return true, nil
	}
	sizes, err := redisconn.KeySizes(ctx, s.conn.Commands(), []string{Key(s.keys)})
	return err == nil && sizes[0] > bytes, err
}

// Append appends valid inbox entries of one partition to its log, in the order of their IDs, all or none. It may be
// repeated, and a second reader does no harm, provided that every reader processes the entries of a partition in order
// without omission: an entry at or before the partition's position is skipped.
func (s *Store) Append(ctx context.Context, partition int, entries []Notification) (Result, error) {
	if len(entries) == 0 {
		return Result{}, nil
	}
	position := PositionKey(s.keys, partition)
	keys := []string{eventlog.Key(s.keys, partition), position}
	args := []any{"", eventlog.IdempotencyTime.Milliseconds()}
	for i := range entries {
		e := &entries[i]
		n := &e.Notification
		if s.keys.Partition(n.Hub) != partition {
			return Result{}, fmt.Errorf("store inbox entry %s: its hub is not in partition %d", e.InboxID, partition)
		}
		key, hasKey := position, "0"
		if e.Key != "" {
			key, hasKey = eventlog.IdempotencyKey(s.keys, partition, eventlog.HashIdempotencyKey(e.Key)), "1"
		}
		keys = append(keys, key)
		args = append(args, e.InboxID, hasKey, n.ID, n.Topic, n.Hub, n.Account, []byte(n.Data))
	}
	r, err := s.moveEntries(ctx, appendScript, keys, args)
	return r, redisconn.WrapError("store inbox entries", err)
}

// IsKeyUsed reports whether an event of a hub with this key was stored within [eventlog.IdempotencyTime]. See [Notification].
func (s *Store) IsKeyUsed(ctx context.Context, hub, key string) (bool, error) {
	key = eventlog.IdempotencyKey(s.keys, s.keys.Partition(hub), eventlog.HashIdempotencyKey(key))
	n, err := s.conn.Commands().Exists(ctx, key).Result()
	return n == 1, redisconn.WrapError("find an idempotency key", err)
}

// Quarantine moves invalid inbox entries, in the order of their IDs, to the quarantine, which operators can read. It
// may be repeated like [Store.Append].
func (s *Store) Quarantine(ctx context.Context, entries []RejectedEntry) (Result, error) {
	if len(entries) == 0 {
		return Result{}, nil
	}
	args, size := []any{""}, 0
	for _, e := range entries {
		data := e.Data
		if data == nil {
			data = []byte{}
		}
		args = append(args, e.InboxID, data, e.Reason, e.Key, NewReplayKey())
		size += len(data) + len(e.Reason) + len(e.Key)
	}
	r, err := s.moveEntries(ctx, quarantineScript, []string{QuarantineKey(s.keys), QuarantinePositionKey(s.keys)}, args)
	if err == nil {
		s.trimmer.Trim(ctx, len(entries), size)
	}
	return r, redisconn.WrapError("quarantine inbox entries", err)
}

// moveEntries runs a script that skips entries at or before a position. If the inbox was deleted and created again
// with lower IDs, because the clock was set back or a producer chose the IDs, moveEntries resets the position.
func (s *Store) moveEntries(ctx context.Context, script *redis.Script, keys []string, args []any) (Result, error) {
	r, position, err := s.runMove(ctx, script, keys, args)
	if err != nil || r.Skipped == 0 {
		return r, err
	}
	info, err := redisconn.ReadStreamInfo(ctx, s.conn.Commands(), Key(s.keys))
	if err != nil {
		return Result{}, err
	}
	// If the inbox does not exist, nothing is known about the entries.
	if info.LastID == streamid.Zero || streamid.Compare(info.LastID, position) >= 0 {
		return r, nil
	}
	s.logReset(ctx, "it was created again with lower IDs", "position", position, "last_entry_id", info.LastID)
	args[0] = position
	again, _, err := s.runMove(ctx, script, keys, args)
	again.Stored += r.Stored
	again.Duplicates = append(r.Duplicates, again.Duplicates...)
	return again, err
}

// runMove runs the script and returns the position before it.
func (s *Store) runMove(
	ctx context.Context, script *redis.Script, keys []string, args []any,
) (r Result, position string, err error) {
	var reply []any
	err = s.conn.WithReplication(ctx, keys[0], func(c redisconn.Runner) (err error) {
		reply, err = script.Run(ctx, c, keys, args...).Slice()
		return err
	})
	if err != nil {
		return r, "", err
	}
	if len(reply) < 4 {
		return r, "", redisconn.ErrUnexpectedReply
	}
	position, ok1 := reply[0].(string)
	stored, ok2 := reply[2].(int64)
	skipped, ok3 := reply[3].(int64)
	if !ok1 || !ok2 || !ok3 {
		return r, "", redisconn.ErrUnexpectedReply
	}
	r.Stored, r.Skipped = int(stored), int(skipped)
	for _, v := range reply[4:] {
		id, _ := v.(string)
		r.Duplicates = append(r.Duplicates, id)
	}
	return r, position, nil
}

// Delete removes entries from the inbox. All of them must be stored or quarantined. After the entry with the highest
// possible ID it calls [Store.Restart].
func (s *Store) Delete(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	err := s.conn.Commands().XDel(ctx, Key(s.keys), ids...).Err()
	if err != nil {
		return redisconn.WrapError("remove inbox entries", err)
	}
	if slices.Contains(ids, streamid.Max) {
		return s.Restart(ctx)
	}
	return nil
}

// Restart removes an empty inbox whose last entry had the highest possible ID, because Redis would accept no further entry. A
// producer can cause this also without an entry that can be read, with XADD MAXLEN 0. It removes the positions first, because
// entries of the new inbox have lower IDs.
func (s *Store) Restart(ctx context.Context) error {
	info, err := redisconn.ReadStreamInfo(ctx, s.conn.Commands(), Key(s.keys))
	if err != nil || info.LastID != streamid.Max || info.Length > 0 {
		return redisconn.WrapError("read the state of the inbox", err)
	}
	positions := []string{QuarantinePositionKey(s.keys)}
	for p := range s.keys.Partitions() {
		positions = append(positions, PositionKey(s.keys, p))
	}
	for _, key := range positions {
		if err := s.conn.Commands().Del(ctx, key).Err(); err != nil {
			return redisconn.WrapError("reset the position of the inbox", err)
		}
	}
	s.logReset(ctx, "it had an entry with the highest ID")
	return redisconn.WrapError("restart the inbox", resetScript.Run(ctx, s.conn.Commands(), []string{Key(s.keys)}).Err())
}

func (s *Store) logReset(ctx context.Context, reason string, attrs ...any) {
	if suppressed, ok := s.resetLog.Allow(); ok {
		attrs = append(attrs, "reason", reason, "suppressed_lines", suppressed)
		s.conn.Logger().WarnContext(ctx, "inbox starts again", attrs...)
	}
}

// Key is the stream that producers write to, with the fields data and, optionally, key.
func Key(k keyspace.Space) string { return k.Global("inbox") }

// PositionKey stores the ID of the last inbox entry that was appended to a partition's log.
func PositionKey(k keyspace.Space, partition int) string {
	return k.InPartition("inbox:position", partition)
}

// QuarantineKey is the stream of rejected entries, with the fields data and reason.
func QuarantineKey(k keyspace.Space) string { return k.InGroup("quarantine", "") }

// QuarantinePositionKey stores the ID of the last inbox entry that was moved to the quarantine.
func QuarantinePositionKey(k keyspace.Space) string { return k.InGroup("quarantine", ":position") }
