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
		b := pendingBatch{resync: -1}
		t.addMessage(&b, first)
		t.addWaiting(&b)
		if b.Gaps > 0 {
			if err := t.gapBatches.Wait(ctx); err != nil {
				return err
			}
			t.addWaiting(&b) // so the batch also reports gaps that have arrived since then
			t.reportGap(ctx, b.gap)
		}
		if err := t.storeBatch(ctx, b.Batch); err != nil {
			return err
		}
		t.inFlightBytes.Release(b.released)
		if b.Cursor != "" {
			t.savedCursor = b.Cursor
		}
		t.opt.Observer.SourceStored(t.opt.Name, b.Batch)
		t.logRejected(b.Batch)
	}
}

// pendingBatch is a batch to which messages are added.
type pendingBatch struct {
	sourcestore.Batch
	messages, bytes int
	released        int64   // memory to release when the batch is stored
	gap             message // to report to operators, if Gaps is not 0
	// resync is the index of the message for clients in Notifications, or -1 without a gap. relayPath lists the relays that
	// all gaps have passed, because a relay ignores the message if it is listed.
	resync    int
	relayPath []string
}

// addWaiting adds the messages that are waiting, up to the limits of a batch.
func (t *session) addWaiting(b *pendingBatch) {
	for b.messages < batchCount && b.bytes < batchBytes {
		select {
		case m := <-t.messages:
			t.addMessage(b, m)
		default:
			return
		}
	}
}

func (t *session) addMessage(b *pendingBatch, m message) {
	b.messages++
	b.bytes += len(m.data)
	b.released += m.size()
	if m.gap != "" {
		t.addGap(b, m)
	}
	t.appendMessage(&b.Batch, m)
}

// addGap adds a message for clients, which replaces the one about earlier gaps of the batch.
func (t *session) addGap(b *pendingBatch, m message) {
	if !b.gap.mustReport {
		b.gap = m
	}
	if b.Gaps++; b.Gaps == 1 {
		b.relayPath = m.relayPath
	} else {
		b.relayPath = slices.DeleteFunc(slices.Clone(b.relayPath), func(id string) bool { return !slices.Contains(m.relayPath, id) })
		b.Notifications = slices.Delete(b.Notifications, b.resync, b.resync+1)
	}
	b.resync = len(b.Notifications)
	b.Notifications = append(b.Notifications, relay.Notification{
		ID: t.opt.Decoder.NewID(), Topic: relay.TopicResync, Hub: t.opt.Hub,
		Data: relay.ResyncEntry(t.opt.Hub, gapNotice, b.relayPath),
	})
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
	if !m.mustReport {
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
