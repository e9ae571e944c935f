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
func (s *session) storeLoop(ctx context.Context) error {
	for {
		var first message
		select {
		case first = <-s.messages:
		case <-ctx.Done():
			return ctx.Err()
		}
		b := pendingBatch{resync: -1}
		s.addMessage(&b, first)
		s.addWaiting(&b)
		if b.Gaps > 0 {
			if err := s.gapBatches.Wait(ctx); err != nil {
				return err
			}
			s.addWaiting(&b) // so the batch also reports gaps that have arrived since then
			s.reportGap(ctx, b.gap)
		}
		if err := s.storeBatch(ctx, b.Batch); err != nil {
			return err
		}
		s.inFlightBytes.Release(b.released)
		if b.Cursor != "" || b.ClearsCursor {
			s.savedCursor = b.Cursor
		}
		s.opt.Observer.SourceStored(s.opt.Name, b.Batch)
		s.logRejected(b.Batch)
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

// addWaiting adds the messages that are waiting, up to the limits of a batch. Gaps become one message, so any number may be in it.
func (s *session) addWaiting(b *pendingBatch) {
	for b.messages-b.Gaps < batchCount && b.bytes < batchBytes {
		select {
		case m := <-s.messages:
			s.addMessage(b, m)
		default:
			return
		}
	}
}

func (s *session) addMessage(b *pendingBatch, m message) {
	b.messages++
	b.bytes += len(m.data)
	b.released += m.size()
	if m.gap != "" {
		s.addGap(b, m)
	}
	s.appendMessage(&b.Batch, m)
}

// addGap adds a message for clients, which replaces the one about earlier gaps of the batch.
func (s *session) addGap(b *pendingBatch, m message) {
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
		ID: s.opt.Decoder.NewID(), Topic: relay.TopicResync, Hub: s.opt.Hub,
		Data: relay.ResyncEntry(s.opt.Hub, gapNotice, b.relayPath),
	})
}

// appendMessage validates a message and adds it to the batch.
func (s *session) appendMessage(batch *sourcestore.Batch, m message) {
	if m.cursor != "" || m.clearsCursor {
		batch.Cursor, batch.ClearsCursor = m.cursor, m.clearsCursor
	}
	if m.data == nil {
		return
	}
	if m.isNotification() {
		n, returned, rejected := s.opt.Decoder.DecodeRelayed(m.data, ingest.Defaults{Hub: s.opt.Hub, AnyAccount: true},
			ingest.RelayHop{From: m.from, Self: s.opt.RelayID})
		switch {
		case returned:
			batch.Returned++
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
		Data: m.data, Reason: "source " + s.opt.Name + ": " + m.rejectReason,
	})
}

// storeBatch stores a batch. It retries while Redis is unreachable.
func (s *session) storeBatch(ctx context.Context, batch sourcestore.Batch) error {
	for retry := newBackoff(); ; {
		err := s.position.Store(ctx, batch)
		switch {
		case err == nil && !retry.IsReset():
			if s.logThrottle.allow("stored", nil) {
				s.opt.Log.InfoContext(ctx, "events of the upstream are stored again")
			}
			return nil
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.Is(err, redisconn.ErrUnavailable):
			return err
		}
		if s.logThrottle.allow("store", err) {
			s.opt.Log.WarnContext(ctx, "events of the upstream cannot be stored, reading is suspended", "error",
				shortError(err))
		}
		retry.Sleep(ctx)
	}
}

// reportGap logs a gap and reports it to operators.
func (s *session) reportGap(ctx context.Context, m message) {
	if !m.mustReport {
		if s.logThrottle.allow("gap", nil) {
			s.opt.Log.WarnContext(ctx, "events of the upstream may be missing", "reason", m.gap)
		}
		return
	}
	s.opt.Log.ErrorContext(ctx, "events of the upstream are missing", "reason", m.gap, "cursor",
		relay.Truncate(s.savedCursor, 200))
	sum := sha256.Sum256([]byte(s.opt.Name + "\n" + s.opt.Hub + "\n" + s.savedCursor))
	if err := s.opt.ReportGap(ctx, hex.EncodeToString(sum[:12]), m.gap); err != nil && ctx.Err() == nil {
		s.opt.Log.WarnContext(ctx, "gap could not be reported to sinks", "error", err)
	}
}

// logRejected logs the first rejected message of a batch, at most once a minute.
func (s *session) logRejected(batch sourcestore.Batch) {
	if len(batch.Rejected) > 0 && s.logThrottle.allow("quarantined", nil) {
		s.opt.Log.Warn("messages of the upstream were moved to the quarantine",
			"count", len(batch.Rejected), "reason", batch.Rejected[0].Reason)
	}
}

// storeTimeout limits one write of the status.
const storeTimeout = 2 * time.Second
