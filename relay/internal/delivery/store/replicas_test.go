package store

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

// Writes that replace an entry of a queue, and changes of operators, have to reach a replica before they succeed.
func TestNewReplicated(t *testing.T) {
	t.Parallel()
	primary, replica := redistest.StartPair(t, redistest.FreePort(t))
	c := conntest.Open(t, primary, redisconn.Options{MinReplicas: 1})
	s := NewReplicated(c, c.Keys())
	scheduled := Scheduled{ID: "1", Body: encodeRecord(t, newDelivery("1"))}
	letter, err := NewDeadLetter("2", NewRecord(newDelivery("2"), time.Now()), "permanent: status 400", "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	writes := map[string]func(context.Context) error{
		"schedule": func(ctx context.Context) error {
			_, err := s.Retries.Schedule(ctx, testSink, scheduled, time.Hour, time.Now())
			return err
		},
		"schedule all": func(ctx context.Context) error {
			_, _, err := s.Retries.ScheduleAll(ctx, testSink, 0, []Scheduled{scheduled})
			return err
		},
		"dead letter": func(ctx context.Context) error {
			_, _, err := s.DeadLetters.Add(ctx, Claim{Sink: testSink, ID: "2"}, DeadLetterLimit{}, letter)
			return err
		},
		"pause":  func(ctx context.Context) error { return s.States.Pause(ctx, testSink) },
		"resume": func(ctx context.Context) error { _, err := s.States.Resume(ctx, testSink); return err },
		"erase":  func(ctx context.Context) error { _, err := s.Erasures.Add(ctx, "acme"); return err },
	}
	replica.Signal(syscall.SIGSTOP)
	for name, write := range writes {
		for range 2 { // a repetition may store nothing, but waits again
			if err := write(t.Context()); !errors.Is(err, redisconn.ErrTooFewReplicas) {
				t.Errorf("%s with a stopped replica: got %v, want ErrTooFewReplicas", name, err)
			}
		}
	}
	if err := c.AwaitReplicas(t.Context()); !errors.Is(err, redisconn.ErrTooFewReplicas) {
		t.Errorf("AwaitReplicas with a stopped replica: got %v, want ErrTooFewReplicas", err)
	}
	replica.Signal(syscall.SIGCONT)
	testkit.WaitFor(t, "the replica to be up to date", func() bool { return c.AwaitReplicas(t.Context()) == nil })
	for name, write := range writes {
		if err := write(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n, err := replica.Client().ZCard(t.Context(), RetryKey(c.Keys(), testSink)).Result(); err != nil || n != 1 {
		t.Errorf("the replica has %d scheduled deliveries, %v, want 1", n, err)
	}
}

// A version does not repeat after a failover that loses the latest change.
func TestStates_VersionAfterRollback(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	var versions []string
	change := func() {
		t.Helper()
		if err := s.States.SignalChange(t.Context()); err != nil {
			t.Fatal(err)
		}
		v, err := s.States.Version(t.Context())
		if err != nil || slices.Contains(versions, v) {
			t.Fatalf("got version %s, %v after %v, want another one", v, err, versions)
		}
		versions = append(versions, v)
	}
	change()
	lost := time.Now().UnixMilli()
	change()
	if err := s.Commands().Set(t.Context(), ChangesKey(s.Keys()), versions[0], 0).Err(); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, "the next millisecond", func() bool { return time.Now().UnixMilli() > lost+1 })
	change()
}
