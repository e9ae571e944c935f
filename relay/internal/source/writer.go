package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/source/sourcestore"
)

const (
	// batchCount and batchBytes limit what one script stores, so it does not block Redis.
	batchCount = 256
	batchBytes = 1 << 20
	// gapNotice is the message of a gap for clients of the stream. The reason and the source are only for operators.
	gapNotice = "events from another relay may be missing"
	// maxQuarantined is the maximum number of stored bytes of an invalid message.
	maxQuarantined = 64 << 10
)

// storeLoop stores messages of the reader until ctx ends. It batches all messages that are waiting.
func (t *session) storeLoop(ctx context.Context) error {
	for {
		var first message
		select {
		case first = <-t.messages:
		case <-ctx.Done():
			return ctx.Err()
		}
		released, batch, gap := t.collectBatch(first)
		if batch.Gaps > 0 {
			if err := t.gapBatches.Wait(ctx); err != nil {
				return err
			}
			t.reportGap(ctx, gap)
		}
		if err := t.storeBatch(ctx, batch); err != nil {
			return err
		}
		t.inFlightBytes.Release(released)
		if batch.Cursor != "" {
			t.savedCursor = batch.Cursor
		}
		t.opt.Observer.SourceStored(t.opt.Name, batch)
		t.logRejected(batch)
	}
}

// collectBatch returns a batch of first and the messages after it, the size to release, and the gap to report if there is one.
// The gaps of a batch become one message for clients, after the last of them.
func (t *session) collectBatch(first message) (released int64, batch sourcestore.Batch, gap message) {
	size, resync := 0, -1 // the index of the message
	for m, count := first, 1; ; count++ {
		released += m.size()
		size += len(m.data)
		if m.gap != "" {
			batch.Gaps++
			if !gap.gapReported {
				gap = m
			}
			if resync >= 0 {
				batch.Notifications = slices.Delete(batch.Notifications, resync, resync+1)
			}
			resync = len(batch.Notifications)
			batch.Notifications = append(batch.Notifications, relay.Notification{
				ID: t.opt.Decoder.NewID(), Topic: relay.TopicResync, Hub: t.opt.Hub, Data: relay.ResyncEntry(t.opt.Hub,
					gapNotice, m.relayPath),
			})
		}
		t.appendMessage(&batch, m)
		if count == batchCount || size >= batchBytes {
			return released, batch, gap
		}
		select {
		case m = <-t.messages:
		default:
			return released, batch, gap
		}
	}
}

// appendMessage validates a message and adds it to the batch.
func (t *session) appendMessage(batch *sourcestore.Batch, m message) {
	if m.cursor != "" {
		batch.Cursor = m.cursor
	}
	if m.data == nil {
		return
	}
	if m.isNotification() {
		n, returned, rejected := t.opt.Decoder.DecodeRelayed(m.data, ingest.Defaults{Hub: t.opt.Hub, AnyAccount: true},
			ingest.RelayHop{From: m.from, Self: t.opt.RelayID})
		switch {
		case returned:
			batch.Looped++
			return
		case rejected == nil:
			batch.Notifications = append(batch.Notifications, n)
			return
		}
		m.rejectReason = rejected.Error()
	}
	if len(m.data) > maxQuarantined {
		m.data = m.data[:maxQuarantined]
		m.rejectReason += " (only the beginning is stored)"
	}
	batch.Rejected = append(batch.Rejected, sourcestore.RejectedMessage{
		Data: m.data, Reason: "source " + t.opt.Name + ": " + m.rejectReason,
	})
}

// storeBatch stores a batch. It retries while Redis is unreachable.
func (t *session) storeBatch(ctx context.Context, batch sourcestore.Batch) error {
	for retry := newBackoff(); ; {
		err := t.position.Store(ctx, batch)
		switch {
		case err == nil && !retry.IsReset():
			if t.logThrottle.allow("stored", nil) {
				t.opt.Log.InfoContext(ctx, "events of the upstream are stored again")
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
			t.opt.Log.WarnContext(ctx, "events of the upstream cannot be stored, reading is suspended", "error",
				shortError(err))
		}
		retry.Sleep(ctx)
	}
}

// reportGap logs a gap and reports it to operators.
func (t *session) reportGap(ctx context.Context, m message) {
	if !m.gapReported {
		if t.logThrottle.allow("gap", nil) {
			t.opt.Log.WarnContext(ctx, "events of the upstream may be missing", "reason", m.gap)
		}
		return
	}
	t.opt.Log.ErrorContext(ctx, "events of the upstream are missing", "reason", m.gap, "cursor",
		relay.Truncate(t.savedCursor, 200))
	sum := sha256.Sum256([]byte(t.opt.Name + "\n" + t.opt.Hub + "\n" + t.savedCursor))
	if err := t.opt.ReportGap(ctx, hex.EncodeToString(sum[:12]), m.gap); err != nil && ctx.Err() == nil {
		t.opt.Log.WarnContext(ctx, "gap could not be reported to sinks", "error", err)
	}
}

// logRejected logs the first rejected message of a batch, at most once a minute.
func (t *session) logRejected(batch sourcestore.Batch) {
	if len(batch.Rejected) > 0 && t.logThrottle.allow("quarantined", nil) {
		t.opt.Log.Warn("messages of the upstream were moved to the quarantine",
			"count", len(batch.Rejected), "reason", batch.Rejected[0].Reason)
	}
}

// storeTimeout limits one write of the status.
const storeTimeout = 2 * time.Second
