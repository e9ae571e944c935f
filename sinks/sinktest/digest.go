package sinktest

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// SampleDigest returns a digest with the given ID and count, which lists the given number of notifications.
func SampleDigest(id string, count, listed int) relay.Delivery {
	begin := time.Date(2026, 11, 20, 23, 59, 58, 0, time.UTC)
	d := relay.Delivery{ID: id, Attempt: 1, Digest: &relay.Digest{
		Count: count, First: begin, Last: begin.Add(time.Duration(count-1) * time.Second),
		Shared: map[string]string{"hub": "hub1"}, Topics: map[string]int{"container.created": count},
	}}
	for i := range listed {
		at := begin.Add(time.Duration(i) * time.Second)
		d.Notifications = append(d.Notifications, Sample(fmt.Sprintf("%08x%016x", at.Unix(), i)).Notifications...)
	}
	return d
}

// testDigest checks that a digest is delivered as one, or rejected by a kind of sink that sends none.
func testDigest(t *testing.T, h Harness) {
	const id = "fedcba9876543210fedcba98"
	bare := SampleDigest(id, 5, 3)
	bare.Digest = &relay.Digest{Count: 5}
	for _, c := range []struct {
		name string
		d    relay.Delivery
	}{
		{"three of five", SampleDigest(id, 5, 3)},
		{"without details", bare},
		{"one", SampleDigest(id, 1, 1)},
	} {
		t.Run(c.name, func(t *testing.T) {
			sink, arrived := h.Open(t, Accept)
			defer closeSink(t, sink)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			before := snapshot(c.d)
			err := sink.Deliver(ctx, c.d)
			checkSecrets(t, h, err)
			if after := snapshot(c.d); after != before {
				t.Errorf("Deliver changed the delivery from %s to %s", before, after)
			}
			ids := arrived()
			switch outcome, _ := relay.Classify(err); {
			case err == nil:
				if len(ids) != 1 || ids[0] != c.d.ID {
					t.Errorf("arrived %v, want one attempt of %s", ids, c.d.ID)
				}
			case outcome != relay.OutcomePermanent || len(ids) > 0 || !strings.Contains(err.Error(), "digest"):
				t.Errorf("outcome %s (%v) after %d attempts, want none, and %s with an error about a digest",
					outcome, err, len(ids), relay.OutcomePermanent)
			}
			explainDelivery(t, h, sink, c.d, err)
		})
	}
}

// explainDelivery checks that a delivery that is sent can be explained, and that a rejected one cannot.
func explainDelivery(t *testing.T, h Harness, sink relay.Sink, d relay.Delivery, delivered error) {
	t.Helper()
	x, ok := sink.(relay.Previewer)
	if !ok {
		return
	}
	e, err := x.Preview(t.Context(), d)
	checkSecrets(t, h, err)
	if (err == nil) != (delivered == nil) || err == nil && len(e.Payload) == 0 {
		t.Errorf("Preview returned %d bytes (%v), and Deliver %v", len(e.Payload), err, delivered)
	}
	for _, secret := range h.Secrets {
		if bytes.Contains(e.Payload, []byte(secret)) || strings.Contains(fmt.Sprint(e.Target, e.Headers), secret) {
			t.Errorf("Preview contains the secret %q", secret)
		}
	}
}

// snapshot encodes a complete delivery, with sorted maps.
func snapshot(d relay.Delivery) string {
	return fmt.Sprintf("%s %d %v %v", d.ID, d.Attempt, *d.Digest, d.Notifications)
}
