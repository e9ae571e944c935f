package backbone

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
)

// quarantineMax bounds the quarantine: whoever floods the inbox with nonsense must not fill Redis with it.
const quarantineMax = 100_000

// InboxEntry is what a producer wrote.
type InboxEntry struct {
	ID string
	// Data is the notification's JSON as the producer wrote it, nil where the field is missing.
	Data []byte
	// Key is the producer's idempotency key, or empty.
	Key string
}

// InboxNotification is an inbox entry that was found to be good.
type InboxNotification struct {
	InboxID string
	// Key, where not empty, makes it a repeat of whatever of this partition had the same key within ten minutes. The
	// caller scopes it.
	Key          string
	Notification relay.Notification
}

// RejectedEntry is an inbox entry that was found to be bad.
type RejectedEntry struct {
	InboxID string
	Data    []byte
	// Reason is a sentence for the producer.
	Reason string
}

// InboxResult counts what became of inbox entries.
type InboxResult struct {
	// Stored is how many are new.
	Stored int
	// Skipped is how many had been stored before, by a run that did not get to remove them from the inbox.
	Skipped int
	// Duplicates are the inbox ids of those whose key was known.
	Duplicates []string
}

// ReadInbox returns up to count entries behind after (empty or "0-0" for the first), waiting for up to block (at most
// [MaxBlock]; zero does not wait) for there to be one.
func (b *Store) ReadInbox(ctx context.Context, after string, count int, block time.Duration) ([]InboxEntry, error) {
	if after == "" {
		after = zeroID
	}
	args := []any{"XREAD", "COUNT", count}
	if block > 0 {
		args = append(args, "BLOCK", max(1, min(block, MaxBlock).Milliseconds()))
	}
	args = append(args, "STREAMS", b.keys.Inbox(), after)
	cmd := redis.NewSliceCmd(ctx, args...)
	cmd.SetFirstKeyPos(int8(len(args) - 2))
	_ = b.blockingClient.Process(ctx, cmd)
	reply, err := cmd.Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	if err != nil {
		return nil, wrapError("read the inbox", err)
	}
	entries, err := parseSingleStream(reply)
	if err != nil {
		return nil, wrapError("read the inbox", err)
	}
	out := make([]InboxEntry, len(entries))
	for i, e := range entries {
		out[i].ID = e.id
		out[i].Key, _ = e.field("key")
		if data, ok := e.field("data"); ok {
			out[i].Data = []byte(data)
		}
	}
	return out, nil
}

// StoreInboxEntries stores good inbox entries of one partition, in the order of their ids, all or none. It is safe to repeat
// and safe against a second reader as long as every reader brings each partition's entries in order and leaves none
// out: whatever does not lie behind the partition's position was stored before.
func (b *Store) StoreInboxEntries(ctx context.Context, partition int, entries []InboxNotification) (InboxResult, error) {
	if len(entries) == 0 {
		return InboxResult{}, nil
	}
	position := b.keys.InboxPosition(partition)
	keys := []string{b.keys.Log(partition), position}
	args := []any{IdempotencyTime.Milliseconds(), ""}
	for i := range entries {
		e := &entries[i]
		n := &e.Notification
		if b.keys.Partition(n.Hub) != partition {
			return InboxResult{}, fmt.Errorf("store inbox entry %s: its hub belongs to another partition than %d", e.InboxID, partition)
		}
		key := position
		if e.Key != "" {
			sum := sha256.Sum256([]byte(e.Key))
			key = b.keys.Idempotency(partition, hex.EncodeToString(sum[:16]))
		}
		keys = append(keys, key)
		args = append(args, e.InboxID, boolArg(e.Key != ""), n.ID, n.Topic, n.Hub, n.Account, []byte(n.Data))
	}
	r, err := b.moveInbox(ctx, inboxScript, keys, args)
	return r, wrapError("store inbox entries", err)
}

// Quarantine moves bad inbox entries, in the order of their ids, where an operator can look at them. It is as safe to
// repeat as [Store.StoreInboxEntries]. The newest 100,000 are kept.
func (b *Store) Quarantine(ctx context.Context, entries []RejectedEntry) (InboxResult, error) {
	if len(entries) == 0 {
		return InboxResult{}, nil
	}
	args := []any{quarantineMax, ""}
	for _, e := range entries {
		data := e.Data
		if data == nil {
			data = []byte{}
		}
		args = append(args, e.InboxID, data, e.Reason)
	}
	r, err := b.moveInbox(ctx, quarantineScript, []string{b.keys.Quarantine(), b.keys.QuarantinePosition()}, args)
	return r, wrapError("quarantine inbox entries", err)
}

// moveInbox runs a script that skips what lies at or before a position. An inbox that was deleted and begun anew, with
// the clock set back or ids of a producer's own, would be skipped too: then the position is given up.
func (b *Store) moveInbox(ctx context.Context, script *redis.Script, keys []string, args []any) (InboxResult, error) {
	r, before, err := b.runInbox(ctx, script, keys, args)
	if err != nil || r.Skipped == 0 {
		return r, err
	}
	info, err := b.streamInfo(ctx, b.keys.Inbox())
	if err != nil {
		return InboxResult{}, err
	}
	// An inbox that is gone altogether proves nothing about the entries at hand.
	if info.lastID == zeroID || CompareEntryIDs(info.lastID, before) >= 0 {
		return r, nil
	}
	b.log.WarnContext(ctx, "the inbox was begun anew with lower ids, its position is given up", "position", before, "last", info.lastID)
	args[1] = before
	again, _, err := b.runInbox(ctx, script, keys, args)
	again.Stored += r.Stored
	again.Duplicates = append(r.Duplicates, again.Duplicates...)
	return again, err
}

func (b *Store) runInbox(ctx context.Context, script *redis.Script, keys []string, args []any) (r InboxResult, before string, err error) {
	var reply []any
	err = b.withReplication(ctx, keys[0], func(w commandRunner) (err error) {
		reply, err = script.Run(ctx, w, keys, args...).Slice()
		return err
	})
	if err != nil {
		return r, "", err
	}
	if len(reply) < 4 {
		return r, "", errReply
	}
	before, ok1 := reply[0].(string)
	stored, ok2 := reply[2].(int64)
	skipped, ok3 := reply[3].(int64)
	if !ok1 || !ok2 || !ok3 {
		return r, "", errReply
	}
	r.Stored, r.Skipped = int(stored), int(skipped)
	for _, v := range reply[4:] {
		id, _ := v.(string)
		r.Duplicates = append(r.Duplicates, id)
	}
	return r, before, nil
}

// DeleteInboxEntries removes entries from the inbox. Call it once all of them were stored or quarantined.
func (b *Store) DeleteInboxEntries(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	return wrapError("remove inbox entries", b.client.XDel(ctx, b.keys.Inbox(), ids...).Err())
}

// parseSingleStream returns the entries of an XREAD of one stream.
func parseSingleStream(reply []any) ([]streamEntry, error) {
	if len(reply) != 1 {
		return nil, errReply
	}
	stream, ok := reply[0].([]any)
	if !ok || len(stream) != 2 {
		return nil, errReply
	}
	return parseEntries(stream[1])
}

// streamEntry is one entry as it comes off the wire: RESP2 arrays, which cost half of go-redis' map for each entry.
type streamEntry struct {
	id     string
	fields []any
}

func (e streamEntry) field(name string) (string, bool) {
	for i := 0; i+1 < len(e.fields); i += 2 {
		if e.fields[i] == name {
			v, ok := e.fields[i+1].(string)
			return v, ok
		}
	}
	return "", false
}

// parseEntries reads what XREAD answers for a stream.
func parseEntries(reply any) ([]streamEntry, error) {
	list, ok := reply.([]any)
	if !ok {
		return nil, errReply
	}
	out := make([]streamEntry, 0, len(list))
	for _, item := range list {
		pair, ok := item.([]any)
		if !ok || len(pair) != 2 {
			return nil, errReply
		}
		id, ok1 := pair[0].(string)
		fields, ok2 := pair[1].([]any)
		if !ok1 {
			return nil, errReply
		}
		if ok2 {
			out = append(out, streamEntry{id, fields})
		}
	}
	return out, nil
}
