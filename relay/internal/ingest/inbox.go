package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/hubrelay/hubrelay/internal/backoff"
	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/internal/logsample"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/inbox"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

const (
	// inboxCount is the maximum number of entries per read.
	inboxCount = 256
	// inboxBytes limits what one script appends, so it does not block Redis.
	inboxBytes = 1 << 20
	// inboxBlock is the maximum time of a read. The end of ctx does not shorten it.
	inboxBlock = time.Second
	// maxQuarantined is the maximum number of stored bytes of an invalid entry.
	maxQuarantined = 1 << 20

	minBackoff = 50 * time.Millisecond
	maxBackoff = 2 * time.Second
)

// InboxStore is the inbox in Redis. See [inbox.Store].
type InboxStore interface {
	Read(ctx context.Context, after string, count int, block time.Duration) ([]inbox.Entry, error)
	Append(ctx context.Context, partition int,
		entries []inbox.Notification) (inbox.Result, error)
	Quarantine(ctx context.Context, entries []inbox.RejectedEntry) (inbox.Result, error)
	Delete(ctx context.Context, ids []string) error
	Restart(ctx context.Context) error
	Keys() keyspace.Space
}

// Lease runs fn in one process at a time, repeatedly until ctx ends.
type Lease interface {
	Run(ctx context.Context, fn func(context.Context) error) error
}

// InboxObserver counts entries. Its methods must not block.
type InboxObserver interface {
	// InboxStored counts entries that became notifications.
	InboxStored(n int)
	// InboxRepeated counts entries with a known idempotency key.
	InboxRepeated(n int)
	// InboxQuarantined counts invalid entries.
	InboxQuarantined(n int)
}

// InboxOptions are the options of an [InboxReader]. Log and Observer may be nil.
type InboxOptions struct {
	Decoder  *Decoder
	Store    InboxStore
	Lease    Lease
	Log      *slog.Logger
	Observer InboxObserver
}

// InboxReader moves inbox entries to the log, in order and each once. Invalid entries go to the quarantine.
type InboxReader struct {
	opt InboxOptions
	// A producer can write any number of invalid entries.
	rejectedLog *logsample.Limiter
}

// maxRejectedLines is the maximum number of log records about invalid entries per minute.
const maxRejectedLines = 10

// NewInboxReader returns a reader. Run starts it.
func NewInboxReader(o InboxOptions) *InboxReader {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &InboxReader{opt: o, rejectedLog: logsample.New(maxRejectedLines, time.Minute, nil)}
}

// Run reads the inbox while it has the lease, until ctx ends, and returns the error of ctx. It waits while Redis
// is unreachable. After the end of ctx it may take up to a second.
func (in *InboxReader) Run(ctx context.Context) error {
	return in.opt.Lease.Run(ctx, in.readLoop)
}

func (in *InboxReader) readLoop(ctx context.Context) error {
	retry := backoff.Backoff{Min: minBackoff, Max: maxBackoff}
	for ctx.Err() == nil {
		err := in.readOnce(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil && !retry.IsReset():
			in.opt.Log.InfoContext(ctx, "inbox reader recovered")
			retry.Reset()
		case err != nil:
			if retry.IsReset() {
				in.opt.Log.WarnContext(ctx, "inbox cannot be read, retrying", "error", err)
			}
			retry.Sleep(ctx)
		}
	}
	return nil
}

// readOnce handles the first entries of the inbox. It always starts at the front: handled entries are deleted, and
// entries that were not deleted are recognized by their ID. After a lost connection it stores and deletes nothing more, because a
// replica may have become the primary. Its inbox may have earlier entries that its log lacks. If a later entry were stored first,
// they would count as stored.
func (in *InboxReader) readOnce(ctx context.Context) error {
	entries, err := in.opt.Store.Read(ctx, "", inboxCount, inboxBlock)
	if err != nil || ctx.Err() != nil {
		return err
	}
	if len(entries) == 0 {
		return in.opt.Store.Restart(ctx)
	}
	good, bad := in.classify(entries)
	var errs []error
	var handled []string
	for partition, list := range good {
		ids, err := in.storeEntries(ctx, partition, list)
		handled, errs = append(handled, ids...), append(errs, err)
		if redisconn.IsConnectionLost(err) {
			return errors.Join(errs...)
		}
	}
	ids, err := in.quarantineEntries(ctx, bad)
	handled, errs = append(handled, ids...), append(errs, err)
	if len(handled) > 0 && !redisconn.IsConnectionLost(err) {
		errs = append(errs, in.opt.Store.Delete(ctx, handled))
	}
	return errors.Join(errs...)
}

// classify validates entries and keeps their order.
func (in *InboxReader) classify(entries []inbox.Entry) (
	good map[int][]inbox.Notification, bad []inbox.RejectedEntry,
) {
	good = make(map[int][]inbox.Notification)
	keys := in.opt.Store.Keys()
	for _, e := range entries {
		n, reason := in.validateEntry(e)
		if reason != "" {
			data := e.Data
			if data == nil {
				data = e.Fields
			}
			if len(data) > maxQuarantined {
				data = data[:maxQuarantined]
				reason += fmt.Sprintf(" (only the first %d bytes are stored)", maxQuarantined)
			}
			key := e.Key
			if checkIdempotencyKey(key) != "" {
				key = ""
			}
			bad = append(bad, inbox.RejectedEntry{InboxID: e.ID, Data: data, Reason: reason, Key: key})
			continue
		}
		a := inbox.Notification{InboxID: e.ID, Notification: n}
		if e.Key != "" {
			a.Key = scopeInboxKey(&n, e.Key)
		}
		p := keys.Partition(n.Hub)
		good[p] = append(good[p], a)
	}
	return good, bad
}

// scopeInboxKey returns the key of [inbox.Notification].
func scopeInboxKey(n *relay.Notification, key string) string {
	return eventlog.HashScopedKey("inbox", n.Hub, n.Account, key)
}

// validateEntry validates one entry. A process with write access to Redis may write for all hubs and accounts.
func (in *InboxReader) validateEntry(e inbox.Entry) (n relay.Notification, reason string) {
	if e.Problem != "" {
		return n, e.Problem
	}
	if e.Data == nil {
		return n, `the entry has no field "data"; write it with XADD … '*' data '{"topic":…}'`
	}
	if e.Key != "" {
		if problem := checkIdempotencyKey(e.Key); problem != "" {
			return n, `the field "key" ` + problem
		}
	}
	// Do not scan data that is far too large.
	if size := len(e.Data); size > 4*MaxNotification {
		return n, fmt.Sprintf("%s: an event has at most %d bytes, this one has %d", relay.CodeTooLarge,
			MaxNotification, size)
	}
	n, err := in.opt.Decoder.Decode(e.Data, Defaults{AnyAccount: true})
	if err != nil {
		return n, err.Error()
	}
	return n, ""
}

// storeEntries stores the entries of a partition in chunks and returns the IDs of the stored ones. It stops at the
// first error to keep the order.
func (in *InboxReader) storeEntries(
	ctx context.Context, partition int, list []inbox.Notification,
) (handled []string, err error) {
	for len(list) > 0 {
		size, count := 0, 0
		for count < len(list) && (count == 0 || size+len(list[count].Notification.Data) <= inboxBytes) {
			size += len(list[count].Notification.Data)
			count++
		}
		result, err := in.opt.Store.Append(ctx, partition, list[:count])
		if err != nil {
			return handled, err
		}
		for _, e := range list[:count] {
			handled = append(handled, e.InboxID)
		}
		if o := in.opt.Observer; o != nil {
			o.InboxStored(result.Stored)
			o.InboxRepeated(len(result.Duplicates))
		}
		if result.Skipped > 0 {
			in.opt.Log.InfoContext(ctx, "inbox entries were already stored", "count", result.Skipped)
		}
		list = list[count:]
	}
	return handled, nil
}

// quarantineEntries moves invalid entries to the quarantine, in chunks.
func (in *InboxReader) quarantineEntries(
	ctx context.Context, bad []inbox.RejectedEntry,
) (handled []string, err error) {
	for chunk := range slices.Chunk(bad, 16) {
		result, err := in.opt.Store.Quarantine(ctx, chunk)
		if err != nil {
			return handled, err
		}
		for _, e := range chunk {
			handled = append(handled, e.InboxID)
		}
		if o := in.opt.Observer; o != nil {
			o.InboxQuarantined(result.Stored)
		}
		if result.Stored == 0 {
			continue
		}
		if suppressed, ok := in.rejectedLog.Allow(); ok {
			in.opt.Log.WarnContext(ctx, "inbox entries were moved to the quarantine", "count", result.Stored,
				"first_entry_id", chunk[0].InboxID, "reason", chunk[0].Reason, "suppressed_lines", suppressed)
		}
	}
	return handled, nil
}
