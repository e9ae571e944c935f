package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// Small values that deliveries need are stored in a full Redis too, because deliveries free memory. Dead letters can be replayed,
// because their event leaves another key. A new retry is rejected, because its event can stay in its queue.
func TestStore_FullRedis(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	s.addDeadLetters(t, "dead")
	mixed := newDelivery("mixed")
	mixed.Notifications = append(mixed.Notifications, mixed.Notifications[0])
	mixed.Notifications[1].Account = "erased"
	batch := Scheduled{ID: "mixed", Body: encodeRecord(t, mixed)}
	if _, err := s.Retries.Schedule(t.Context(), testSink, batch, time.Hour, time.Now()); err != nil {
		t.Fatal(err)
	}
	s.openDigest(t)
	if err := s.Commands().ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	limit := RateLimit{Rate: relay.Rate{Count: 10, Per: time.Second}, Burst: 5}
	for _, op := range []struct {
		name string
		do   func() error
	}{
		{"pause a rate", func() error { return s.Rates.Cooldown(ctx, "shared", limit, time.Second) }},
		{"end the pause of a rate", func() error { return s.Rates.EndCooldown(ctx, "shared", limit) }},
		{"seal digests earlier", func() error { _, err := s.Digests.SealWithin(ctx, testSink, time.Second); return err }},
		{"resume a sink", func() error { _, err := s.States.Resume(ctx, testSink); return err }},
		{"change a shared value", func() error {
			_, lock, err := s.SharedStates.ForSink(testSink).Lock(ctx, "thread", time.Minute)
			if err != nil {
				return err
			}
			return lock.Save(ctx, "1", time.Minute)
		}},
		{"record a failure", func() error { _, err := s.Failures.Record(ctx, testSink); return err }},
		{"add statistics", func() error {
			return s.Stats.Add(ctx, []StatsDelta{{Sink: testSink, Counters: map[string]int64{FieldRetried: 1}}}, func(int) {
				t.Error("the statistics were not added")
			})
		}},
		{"replay a dead letter", func() error {
			_, err := s.DeadLetters.Replay(ctx, testSink, []string{"dead"}, ReplayOptions{})
			return err
		}},
		{"erase an account", func() error {
			until, err := s.Erasures.Add(ctx, "erased")
			if err != nil {
				return err
			}
			n, err := s.Retries.EraseAccount(ctx, testSink, "erased", until)
			if err == nil && n != 1 {
				err = fmt.Errorf("changed %d deliveries, want 1", n)
			}
			return err
		}},
		{"disable a sink", func() error {
			_, err := s.States.Disable(ctx, testSink, "gone", "f1", disabledAt)
			return err
		}},
	} {
		if err := op.do(); err != nil {
			t.Errorf("%s: %v", op.name, err)
		}
	}
	d := Scheduled{ID: "b", Body: encodeRecord(t, newDelivery("b"))}
	if _, err := s.Retries.Schedule(ctx, testSink, d, 0, time.Now()); err == nil {
		t.Error("a full redis accepted a new retry")
	}
}
