// Package sinktest is the conformance suite of sinks. It checks the contract of relay.Sink with a destination that has
// one of several behaviors.
//
// It knows neither sinks nor protocols. Only tests may import it.
package sinktest

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// Behavior is a behavior of the destination.
type Behavior int

// The behaviors that the suite uses.
const (
	// Accept accepts everything immediately.
	Accept Behavior = iota
	// Fail rejects a delivery temporarily: a later attempt may succeed.
	Fail
	// Throttle rejects a delivery temporarily and requests a delay.
	Throttle
	// Reject rejects a delivery permanently.
	Reject
	// Gone rejects all deliveries permanently.
	Gone
	// Hang accepts the request and never responds.
	Hang
	// Unreachable does not accept connections.
	Unreachable
)

func (b Behavior) String() string {
	return [...]string{"accept", "fail", "throttle", "reject", "gone", "hang", "unreachable"}[b]
}

// Harness connects the suite with the test of a sink.
type Harness struct {
	// Open returns a new sink, and a function that returns the IDs of received deliveries in any order. The sink must
	// send [relay.Delivery.ID] or something that identifies it. The destination has the behavior until the test ends.
	// The suite closes the sink.
	Open func(t *testing.T, b Behavior) (sink relay.Sink, arrived func() []string)
	// RetryAfter is the delay that a throttling destination requests.
	RetryAfter time.Duration
	// Batches reports whether this kind of sink supports batches.
	Batches bool
	// SplitsBatches means that the sink delivers the notifications of a batch separately, so one with invalid JSON does
	// not affect others.
	SplitsBatches bool
	// Secrets are texts of the configuration that errors must not contain.
	Secrets []string
	// Skip contains the reasons why destinations of this kind never have a behavior. Accept, Hang and Unreachable
	// cannot be skipped.
	Skip map[Behavior]string
}

// Run checks everything that [relay.Sink] promises.
func Run(t *testing.T, h Harness) {
	for _, c := range []struct {
		behavior Behavior
		outcome  relay.Outcome
		after    time.Duration
	}{
		{Accept, relay.OutcomeDelivered, 0},
		{Fail, relay.OutcomeRetry, 0},
		{Throttle, relay.OutcomeRetry, h.RetryAfter},
		{Reject, relay.OutcomePermanent, 0},
		{Gone, relay.OutcomeGone, 0},
		{Unreachable, relay.OutcomeRetry, 0},
	} {
		t.Run(c.behavior.String(), func(t *testing.T) {
			if why, ok := h.Skip[c.behavior]; ok && c.behavior != Accept && c.behavior != Unreachable {
				t.Skip(why)
			}
			testOutcome(t, h, c.behavior, c.outcome, c.after)
		})
	}
	t.Run("hang", func(t *testing.T) { testHang(t, h) })
	t.Run("cancelled", func(t *testing.T) { testCancelled(t, h) })
	t.Run("concurrency", func(t *testing.T) { testConcurrency(t, h) })
	t.Run("digest", func(t *testing.T) { testDigest(t, h) })
	t.Run("batch", func(t *testing.T) {
		if !h.Batches {
			t.Skip("this kind of sink does not support batches")
		}
		testBatch(t, h)
	})
	t.Run("close", func(t *testing.T) { testClose(t, h) })
}

// Sample returns a delivery of one notification with the given ID.
func Sample(id string) relay.Delivery {
	data := fmt.Sprintf(`{"topic":"container.created","object":{"id":%q,"state":"","error":""},`+
		`"context":{"hub_id":"hub1",`+
		`"account_id":"acc1","environments":[],"dns_zones":[],"clusters":[],"containers":["c1"],`+
		`"extra":12345678901234567890},"flags":null}`, id)
	return relay.Delivery{ID: id, Attempt: 1, Notifications: []relay.Notification{{
		ID: id, Topic: "container.created", Hub: "hub1", Account: "acc1", Cursor: "1-0", Data: []byte(data),
	}}}
}

func testOutcome(t *testing.T, h Harness, b Behavior, want relay.Outcome, after time.Duration) {
	sink, arrived := h.Open(t, b)
	defer closeSink(t, sink)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	d := Sample("0123456789abcdef01234567")
	before := bytes.Clone(d.Notifications[0].Data)
	err := sink.Deliver(ctx, d)
	checkSecrets(t, h, err)
	got, wait := relay.Classify(err)
	if got != want {
		t.Fatalf("outcome %s (%v), want %s", got, err, want)
	}
	// A date as Retry-After has whole seconds.
	if wait < after-2*time.Second || wait > after+time.Second {
		t.Errorf("wait %s, want about %s", wait, after)
	}
	if !bytes.Equal(before, d.Notifications[0].Data) {
		t.Error("Deliver changed the delivery")
	}
	if ids := arrived(); b != Unreachable && (len(ids) != 1 || ids[0] != d.ID) {
		t.Errorf("arrived %v, want one attempt of %s", ids, d.ID)
	}
}

func testHang(t *testing.T, h Harness) {
	sink, _ := h.Open(t, Hang)
	defer closeSink(t, sink)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	err := sink.Deliver(ctx, Sample("0123456789abcdef01234567"))
	checkSecrets(t, h, err)
	if got, _ := relay.Classify(err); got != relay.OutcomeRetry {
		t.Errorf("outcome %s, want %s", got, relay.OutcomeRetry)
	}
	if took := time.Since(start); took > time.Minute {
		t.Errorf("Deliver took %s with a deadline of 50ms", took)
	}
}

func testCancelled(t *testing.T, h Harness) {
	sink, _ := h.Open(t, Accept)
	defer closeSink(t, sink)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := sink.Deliver(ctx, Sample("0123456789abcdef01234567"))
	checkSecrets(t, h, err)
	if got, _ := relay.Classify(err); got != relay.OutcomeRetry {
		t.Errorf("outcome %s of a cancelled attempt, want %s", got, relay.OutcomeRetry)
	}
}

func testConcurrency(t *testing.T, h Harness) {
	const workers, each = 16, 8
	sink, arrived := h.Open(t, Accept)
	defer closeSink(t, sink)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				if err := sink.Deliver(ctx, Sample(fmt.Sprintf("%012x%012x", w, i))); err != nil {
					t.Errorf("deliver: %v", err)
				}
			}
		})
	}
	wg.Wait()
	seen := map[string]int{}
	for _, id := range arrived() {
		seen[id]++
	}
	if len(seen) != workers*each {
		t.Errorf("%d deliveries arrived, want %d", len(seen), workers*each)
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("%s arrived %d times, want once", id, n)
		}
	}
}

func testClose(t *testing.T, h Harness) {
	unused, _ := h.Open(t, Accept)
	closeSink(t, unused)
	closeSink(t, unused)
	used, _ := h.Open(t, Accept)
	if err := used.Deliver(context.Background(), Sample("0123456789abcdef01234567")); err != nil {
		t.Error(err)
	}
	closeSink(t, used)
	closeSink(t, used)
}

func closeSink(t *testing.T, s relay.Sink) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func checkSecrets(t *testing.T, h Harness, err error) {
	t.Helper()
	if err == nil {
		return
	}
	for _, text := range []string{err.Error(), fmt.Sprintf("%+v", err)} {
		for _, secret := range h.Secrets {
			if strings.Contains(text, secret) {
				t.Errorf("error %q contains the secret %q", text, secret)
			}
		}
	}
}
