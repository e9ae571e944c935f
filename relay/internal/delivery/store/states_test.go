package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

var disabledAt = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestStates_DisablesAndEnables(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	version, err := s.States.Version(t.Context())
	if err != nil || version != "" {
		t.Fatalf("got version %q, %v, want none", version, err)
	}
	for _, c := range []struct {
		reason string
		want   DisableResult
	}{{"gone", DisableNew}, {"gone", DisableRepeated}, {"moved", DisableUnchanged}, {"moved", DisableRepeated}} {
		got, err := s.States.Disable(t.Context(), testSink, c.reason, "f1", disabledAt)
		if err != nil || got != c.want {
			t.Errorf("Disable(%s): got %d, %v, want %d", c.reason, got, err, c.want)
		}
	}
	want := SinkState{State: StateDisabled, Reason: "moved", Since: disabledAt, Fingerprint: "f1"}
	got, err := s.States.Get(t.Context(), testSink)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("state (-want +got), error %v:\n%s", err, diff)
	}
	for _, c := range []struct {
		fingerprint string
		enabled     bool
		want        State
	}{{"f2", false, StateDisabled}, {"f1", true, StateActive}, {"f1", false, StateActive}} {
		if enabled, err := s.States.Enable(t.Context(), testSink, c.fingerprint); err != nil || enabled != c.enabled {
			t.Errorf("Enable(%s): got %t, %v, want %t", c.fingerprint, enabled, err, c.enabled)
		}
		if got, err := s.States.Get(t.Context(), testSink); err != nil || got.State != c.want {
			t.Errorf("after Enable(%s): got %s, %v, want %s", c.fingerprint, got.State, err, c.want)
		}
	}
	if version, err := s.States.Version(t.Context()); err != nil || version == "" {
		t.Errorf("got version %q, %v, want one", version, err)
	}
}

// On a full Redis, operators can still pause a sink, which stops what fills it.
func TestStates_ChangeOnFullRedis(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	if err := s.Commands().ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.States.Pause(t.Context(), testSink); err != nil {
		t.Error(err)
	}
	paused := s.Commands().Get(t.Context(), ChangesKey(s.Keys())).Val()
	if _, err := s.States.Resume(t.Context(), testSink); err != nil {
		t.Error(err)
	}
	if resumed := s.Commands().Get(t.Context(), ChangesKey(s.Keys())).Val(); paused == "" || resumed == paused {
		t.Errorf("got the versions %q and %q, want two", paused, resumed)
	}
}

func TestStates_ResumeReportsDisabledSink(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := openStore(t, server)
	pause := func(ctx context.Context) error { return s.States.Pause(ctx, testSink) }
	disable := func(ctx context.Context) error {
		_, err := s.States.Disable(ctx, testSink, "gone", "f1", disabledAt)
		return err
	}
	enable := func(ctx context.Context) error {
		_, err := s.States.Enable(ctx, testSink, "f1")
		return err
	}
	for _, c := range []struct {
		name      string
		steps     []func(context.Context) error
		want      State
		recovered bool
	}{
		{"active", nil, StateActive, false},
		{"paused", []func(context.Context) error{pause}, StatePaused, false},
		{"disabled", []func(context.Context) error{disable}, StateDisabled, true},
		{"disabled, then paused", []func(context.Context) error{disable, pause, pause}, StatePaused, true},
		{"paused, then disabled", []func(context.Context) error{pause, disable, enable}, StatePaused, false},
	} {
		for _, step := range c.steps {
			if err := step(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Failures.Record(t.Context(), testSink); err != nil {
			t.Fatal(err)
		}
		server.Restart()
		s = openStore(t, server) // a state survives restarts of Redis and of the node
		if got, err := s.States.Get(t.Context(), testSink); err != nil || got.State != c.want {
			t.Errorf("%s: got %+v, %v, want %s", c.name, got, err, c.want)
		}
		if recovered, err := s.States.Resume(t.Context(), testSink); err != nil || recovered != c.recovered {
			t.Errorf("%s: Resume: got %t, %v, want %t", c.name, recovered, err, c.recovered)
		}
		r := s.poll(t, PollRequest{Sink: testSink, WithState: true})
		resumed := r.State.Resumed
		if r.IsFailing || resumed == "" || r.State != (SinkState{State: StateActive, Resumed: resumed}) {
			t.Errorf("%s: after Resume: got failing %t, %+v, want active", c.name, r.IsFailing, r.State)
		}
	}
}

func TestStates_ReadDamagedState(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	for _, c := range []struct {
		fields map[string]string
		want   SinkState
	}{
		{map[string]string{"state": "off", "reason": "x"}, SinkState{State: StateActive}},
		{map[string]string{"reason": "x"}, SinkState{State: StateActive}},
		{map[string]string{"state": "paused", "since": "x"}, SinkState{State: StatePaused}},
	} {
		key := StateKey(s.Keys(), testSink)
		if err := s.Commands().Del(t.Context(), key).Err(); err != nil {
			t.Fatal(err)
		}
		if err := s.Commands().HSet(t.Context(), key, c.fields).Err(); err != nil {
			t.Fatal(err)
		}
		if got, err := s.States.Get(t.Context(), testSink); err != nil || got != c.want {
			t.Errorf("%v: got %+v, %v, want %+v", c.fields, got, err, c.want)
		}
	}
}

func TestSharedStates_LockIsExclusive(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := openStore(t, server)
	a, b := s.SharedStates.ForSink(testSink), openStore(t, server).SharedStates.ForSink(testSink)
	lock := func(from relay.SharedState, name, want string) relay.StateLock {
		t.Helper()
		value, held, err := from.Lock(t.Context(), name, time.Hour)
		if err != nil || value != want {
			t.Fatalf("Lock(%s): got %q, %v, want %q", name, value, err, want)
		}
		return held
	}
	held := lock(a, "n", "")
	if _, _, err := b.Lock(t.Context(), "n", time.Hour); !errors.Is(err, relay.ErrLocked) {
		t.Errorf("locked name: got %v, want ErrLocked", err)
	}
	lock(b, "other name", "")
	lock(s.SharedStates.ForSink("other sink"), "n", "")
	if err := held.Save(t.Context(), strings.Repeat("v", relay.MaxSharedValue+1), time.Hour); err == nil {
		t.Error("a value that is too long was stored")
	}
	for _, end := range []error{
		held.Save(t.Context(), "v", time.Hour),
		lock(b, "n", "v").Release(t.Context()),
		lock(a, "n", "v").Save(t.Context(), "", time.Hour), // deletes the value
		lock(b, "n", "").Release(t.Context()),
	} {
		if end != nil {
			t.Error(end)
		}
	}
}

func TestSharedStates_LockAndValueExpire(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	state := s.SharedStates.ForSink(testSink)
	_, late, err := state.Lock(t.Context(), "n", time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	var held relay.StateLock
	testkit.WaitFor(t, "the lock to expire", func() bool {
		_, held, err = state.Lock(t.Context(), "n", time.Hour)
		return err == nil
	})
	if err := late.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := state.Lock(t.Context(), "n", time.Hour); !errors.Is(err, relay.ErrLocked) {
		t.Errorf("after a late release: got %v, want ErrLocked", err)
	}
	if err := held.Save(t.Context(), "v", time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := late.Save(t.Context(), "late", time.Hour); err != nil {
		t.Fatal(err)
	}
	value, held, err := state.Lock(t.Context(), "n", time.Millisecond)
	if err != nil || value != "v" {
		t.Fatalf("after a late save: got %q, %v, want v", value, err)
	}
	if err := held.Save(t.Context(), "short", time.Millisecond); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, "the value to expire", func() bool {
		keys, err := s.Commands().Keys(t.Context(), "*"+testSink+"*").Result()
		return err == nil && len(keys) == 0
	})
}

// TestErasures keeps the last erasure of each account for a day.
func TestErasures(t *testing.T) {
	t.Parallel()
	s := startStore(t)
	if _, err := s.Erasures.Add(t.Context(), "old"); err != nil {
		t.Fatal(err)
	}
	old := redis.Z{Score: float64(time.Now().Add(-25 * time.Hour).UnixMilli()), Member: "old"}
	if err := s.Commands().ZAdd(t.Context(), ErasuresKey(s.Keys()), old).Err(); err != nil {
		t.Fatal(err)
	}
	var at time.Time
	for range 2 {
		var err error
		if at, err = s.Erasures.Add(t.Context(), "new"); err != nil {
			t.Fatal(err)
		}
	}
	list, err := s.Erasures.List(t.Context())
	if err != nil || len(list) != 1 || !list["new"].Equal(at) {
		t.Errorf("got %v (%v), want new at %v", list, err, at)
	}
	ms := at.UnixMilli()
	for cursor, want := range map[string]bool{
		fmt.Sprint(ms, "-0"): true, fmt.Sprint(ms-1, "-9"): true, fmt.Sprint(ms+1, "-0"): false, "": true,
	} {
		if got := IsStoredUntil(cursor, at); got != want {
			t.Errorf("cursor %q: got %t, want %t", cursor, got, want)
		}
	}
}
