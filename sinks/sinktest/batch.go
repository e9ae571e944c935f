package sinktest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// SampleBatch returns a batch with the given ID and n notifications.
func SampleBatch(id string, n int) relay.Delivery {
	d := relay.Delivery{ID: id, Attempt: 1, Batch: true}
	for i := range n {
		d.Notifications = append(d.Notifications, Sample(fmt.Sprintf("%024x", i)).Notifications...)
	}
	return d
}

// testBatch checks that a batch is delivered as one.
func testBatch(t *testing.T, h Harness) {
	const id = "fedcba9876543210fedcba98"
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			sink, arrived := h.Open(t, Accept)
			defer closeSink(t, sink)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			d := SampleBatch(id, n)
			before := fmt.Sprint(d)
			err := sink.Deliver(ctx, d)
			checkSecrets(t, h, err)
			if err != nil {
				t.Fatal(err)
			}
			if after := fmt.Sprint(d); after != before {
				t.Errorf("Deliver changed the delivery from %s to %s", before, after)
			}
			if ids := arrived(); len(ids) != 1 || ids[0] != id {
				t.Errorf("arrived %v, want one attempt of %s", ids, id)
			}
			explainDelivery(t, h, sink, d, err)
		})
	}
	t.Run("spoiled", func(t *testing.T) {
		sink, arrived := h.Open(t, Accept)
		defer closeSink(t, sink)
		d := SampleBatch(id, 2)
		d.Notifications[1].Data = []byte("not JSON")
		err := sink.Deliver(context.Background(), d)
		if h.SplitsBatches && err == nil {
			return
		}
		if outcome, _ := relay.Classify(err); outcome != relay.OutcomePermanent || len(arrived()) > 0 {
			t.Errorf("outcome %s (%v) after %d attempts, want %s and none", outcome, err, len(arrived()),
				relay.OutcomePermanent)
		}
		explainDelivery(t, h, sink, d, err)
	})
}
