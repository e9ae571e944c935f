package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/backbone"
	"github.com/hubrelay/hubrelay/relay/ingest"
)

const (
	// batchCount and batchBytes bound what one script stores, so that it does not hold up Redis.
	batchCount = 256
	batchBytes = 1 << 20
	// lostUpstream is what clients of the stream hear of a gap. Why, and of which source, is the operators' business.
	lostUpstream = "something that this relay takes over from another may be missing"
	// maxQuarantined bounds the data that is kept of a bad message.
	maxQuarantined = 64 << 10
)

// write stores what the reader hands over, all that waits at once, until ctx ends.
func (t *turn) write(ctx context.Context) error {
	for {
		var first message
		select {
		case first = <-t.waiting:
		case <-ctx.Done():
			return ctx.Err()
		}
		taken, batch := t.gather(ctx, first)
		if err := t.store(ctx, batch); err != nil {
			return err
		}
		t.room.Release(taken)
		if batch.Cursor != "" {
			t.stored = batch.Cursor
		}
		t.opt.Observer.SourceStored(t.opt.Name, batch)
		t.sayRefused(batch)
	}
}

// gather makes a batch of first and what waits behind it. taken is how much room that had.
func (t *turn) gather(ctx context.Context, first message) (taken int64, batch backbone.SourceBatch) {
	size := 0
	for m, count := first, 1; ; count++ {
		taken += m.weight()
		size += len(m.data)
		t.add(ctx, &batch, m)
		if count == batchCount || size >= batchBytes {
			return taken, batch
		}
		select {
		case m = <-t.waiting:
		default:
			return taken, batch
		}
	}
}

// add validates a message.
func (t *turn) add(ctx context.Context, batch *backbone.SourceBatch, m message) {
	if m.gap != "" {
		batch.Gaps++
		t.tellGap(ctx, m)
		batch.Notifications = append(batch.Notifications, relay.Notification{
			ID: t.opt.Decoder.NewID(), Topic: relay.TopicResync, Hub: t.opt.Hub, Data: relay.ResyncAfter(t.opt.Hub, lostUpstream, m.via),
		})
	}
	if m.cursor != "" {
		batch.Cursor = m.cursor
	}
	if m.data == nil {
		return
	}
	if m.plain() {
		n, returned, refused := t.opt.Decoder.DecodeRelayed(m.data, ingest.Defaults{Hub: t.opt.Hub, AnyAccount: true},
			ingest.Hop{From: m.from, Self: t.opt.Instance})
		switch {
		case returned:
			batch.Returned++
			return
		case refused == nil:
			batch.Notifications = append(batch.Notifications, n)
			return
		}
		m.refused = refused.Error()
	}
	if len(m.data) > maxQuarantined {
		m.data = m.data[:maxQuarantined]
		m.refused += " (only the beginning is kept)"
	}
	batch.Refused = append(batch.Refused, backbone.SourceRefusal{Data: m.data, Reason: "source " + t.opt.Name + ": " + m.refused})
}

// store stores a batch, for which Redis may have to come back.
func (t *turn) store(ctx context.Context, batch backbone.SourceBatch) error {
	for wait := backoffMin; ; wait = min(2*wait, backoffMax) {
		err := t.place.Store(ctx, batch)
		switch {
		case err == nil && wait > backoffMin:
			if t.say.worth("stored", nil) {
				t.opt.Log.InfoContext(ctx, "what comes from the upstream is stored again")
			}
			return nil
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.Is(err, backbone.ErrUnavailable):
			return err
		}
		if t.say.worth("store", err) {
			t.opt.Log.WarnContext(ctx, "what comes from the upstream cannot be stored now, so nothing more is read", "error", short(err))
		}
		relay.Pause(ctx, wait)
	}
}

// tellGap says that something is missing.
func (t *turn) tellGap(ctx context.Context, m message) {
	if !m.told {
		if t.say.worth("gap", nil) {
			t.opt.Log.WarnContext(ctx, "something may be missing from the upstream", "reason", m.gap)
		}
		return
	}
	t.opt.Log.ErrorContext(ctx, "something is missing from the upstream", "reason", m.gap, "after", relay.Clip(t.stored, 200))
	sum := sha256.Sum256([]byte(t.opt.Name + "\n" + t.opt.Hub + "\n" + t.stored))
	if err := t.opt.Gap(ctx, hex.EncodeToString(sum[:12]), m.gap); err != nil && ctx.Err() == nil {
		t.opt.Log.WarnContext(ctx, "no sink could be told of the gap", "error", err)
	}
}

// sayRefused names the first of what went to the quarantine, seldom.
func (t *turn) sayRefused(batch backbone.SourceBatch) {
	if len(batch.Refused) > 0 && t.say.worth("quarantined", nil) {
		t.opt.Log.Warn("messages of the upstream were refused, they are in the quarantine",
			"count", len(batch.Refused), "reason", batch.Refused[0].Reason)
	}
}

// storeTime bounds one write of the status.
const storeTime = 2 * time.Second
