package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/source/sourcestore"
)

const (
	// batchCount and batchBytes bound what one script stores, so that it does not hold up Redis.
	batchCount = 256
	batchBytes = 1 << 20
	// gapNotice is what clients of the stream hear of a gap. Why, and of which source, is the operators' business.
	gapNotice = "something that this relay takes over from another may be missing"
	// maxQuarantined bounds the data that is kept of a bad message.
	maxQuarantined = 64 << 10
)

// storeLoop stores what the reader hands over, all that waits at once, until ctx ends.
func (t *session) storeLoop(ctx context.Context) error {
	for {
		var first message
		select {
		case first = <-t.messages:
		case <-ctx.Done():
			return ctx.Err()
		}
		taken, batch := t.collectBatch(ctx, first)
		if err := t.storeBatch(ctx, batch); err != nil {
			return err
		}
		t.inFlightBytes.Release(taken)
		if batch.Cursor != "" {
			t.savedCursor = batch.Cursor
		}
		t.opt.Observer.SourceStored(t.opt.Name, batch)
		t.logRejected(batch)
	}
}

// collectBatch makes a batch of first and what waits behind it. taken is how much room that had.
func (t *session) collectBatch(ctx context.Context, first message) (taken int64, batch sourcestore.Batch) {
	size := 0
	for m, count := first, 1; ; count++ {
		taken += m.size()
		size += len(m.data)
		t.appendMessage(ctx, &batch, m)
		if count == batchCount || size >= batchBytes {
			return taken, batch
		}
		select {
		case m = <-t.messages:
		default:
			return taken, batch
		}
	}
}

// appendMessage validates a message.
func (t *session) appendMessage(ctx context.Context, batch *sourcestore.Batch, m message) {
	if m.gap != "" {
		batch.Gaps++
		t.reportGap(ctx, m)
		batch.Notifications = append(batch.Notifications, relay.Notification{
			ID: t.opt.Decoder.NewID(), Topic: relay.TopicResync, Hub: t.opt.Hub, Data: relay.ResyncEntry(t.opt.Hub, gapNotice, m.relayPath),
		})
	}
	if m.cursor != "" {
		batch.Cursor = m.cursor
	}
	if m.data == nil {
		return
	}
	if m.isNotification() {
		n, returned, refused := t.opt.Decoder.DecodeRelayed(m.data, ingest.Defaults{Hub: t.opt.Hub, AnyAccount: true},
			ingest.RelayHop{From: m.from, Self: t.opt.Instance})
		switch {
		case returned:
			batch.Looped++
			return
		case refused == nil:
			batch.Notifications = append(batch.Notifications, n)
			return
		}
		m.rejectReason = refused.Error()
	}
	if len(m.data) > maxQuarantined {
		m.data = m.data[:maxQuarantined]
		m.rejectReason += " (only the beginning is kept)"
	}
	batch.Rejected = append(batch.Rejected, sourcestore.RejectedMessage{Data: m.data, Reason: "source " + t.opt.Name + ": " + m.rejectReason})
}

// storeBatch stores a batch, for which Redis may have to come back.
func (t *session) storeBatch(ctx context.Context, batch sourcestore.Batch) error {
	for wait := backoffMin; ; wait = min(2*wait, backoffMax) {
		err := t.position.Store(ctx, batch)
		switch {
		case err == nil && wait > backoffMin:
			if t.logThrottle.allow("stored", nil) {
				t.opt.Log.InfoContext(ctx, "what comes from the upstream is stored again")
			}
			return nil
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.Is(err, redisconn.ErrUnavailable):
			return err
		}
		if t.logThrottle.allow("store", err) {
			t.opt.Log.WarnContext(ctx, "what comes from the upstream cannot be stored now, so nothing more is read", "error", shortError(err))
		}
		relay.Sleep(ctx, wait)
	}
}

// reportGap says that something is missing.
func (t *session) reportGap(ctx context.Context, m message) {
	if !m.gapReported {
		if t.logThrottle.allow("gap", nil) {
			t.opt.Log.WarnContext(ctx, "something may be missing from the upstream", "reason", m.gap)
		}
		return
	}
	t.opt.Log.ErrorContext(ctx, "something is missing from the upstream", "reason", m.gap, "after", relay.Truncate(t.savedCursor, 200))
	sum := sha256.Sum256([]byte(t.opt.Name + "\n" + t.opt.Hub + "\n" + t.savedCursor))
	if err := t.opt.ReportGap(ctx, hex.EncodeToString(sum[:12]), m.gap); err != nil && ctx.Err() == nil {
		t.opt.Log.WarnContext(ctx, "no sink could be told of the gap", "error", err)
	}
}

// logRejected names the first of what went to the quarantine, seldom.
func (t *session) logRejected(batch sourcestore.Batch) {
	if len(batch.Rejected) > 0 && t.logThrottle.allow("quarantined", nil) {
		t.opt.Log.Warn("messages of the upstream were refused, they are in the quarantine",
			"count", len(batch.Rejected), "reason", batch.Rejected[0].Reason)
	}
}

// storeTime bounds one write of the status.
const storeTime = 2 * time.Second
