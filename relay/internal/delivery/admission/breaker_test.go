package admission

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

var errServer = &relay.ResponseError{Status: 500}

func TestBreaker_States(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	b := newBreaker(func() time.Time { return now })
	var turns []bool
	b.onChange = func(open bool, _ error) { turns = append(turns, open) }
	attempt := func(err error) (probe bool) {
		t.Helper()
		probe, ok := b.tryEnter(Account{})
		if !ok {
			t.Fatal("no attempt may begin")
		}
		b.recordAttempt(Account{}, probe, true, err)
		return probe
	}
	refused := func() bool { _, ok := b.tryEnter(Account{}); return !ok }

	for range FailureThreshold - 1 {
		attempt(errServer)
	}
	attempt(nil) // a success resets the count
	for range FailureThreshold - 1 {
		attempt(errServer)
	}
	if refused() {
		t.Fatal("open too early")
	}
	attempt(errServer)
	for pause := time.Second; pause <= 4*time.Minute; pause *= 2 {
		pause := min(pause, time.Minute)
		if most, wait := b.maxAttempts(16); most != 0 || wait != pause || !refused() {
			t.Fatalf("room for %d, pause %s, want %s", most, wait, pause)
		}
		now = now.Add(pause)
		if most, _ := b.maxAttempts(16); most != 1 {
			t.Fatalf("room for %d, want for the probe", most)
		}
		if probe, ok := b.tryEnter(Account{}); !probe || !ok || !refused() {
			t.Fatal("want one probe at a time")
		}
		b.recordAttempt(Account{}, true, true, errServer)
	}
	now = now.Add(time.Minute)
	probe, _ := b.tryEnter(Account{})
	b.recordAttempt(Account{}, probe, false, context.Canceled) // aborted: another probe may start at once
	if !attempt(nil) || refused() {
		t.Error("the breaker is open after a successful probe")
	}
	if most, _ := b.maxAttempts(16); most != 16 {
		t.Errorf("room for %d, want 16", most)
	}
	for range FailureThreshold {
		attempt(errServer)
	}
	if _, wait := b.maxAttempts(1); wait != time.Second {
		t.Errorf("got open time %s, want 1s", wait)
	}
	if got := fmt.Sprint(turns); got != "[true false true]" {
		t.Errorf("got changes %s", got)
	}
}

// An operator need not wait for the next probe.
func TestBreaker_ProbeNow(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	b := newBreaker(func() time.Time { return now })
	var changes []time.Duration
	b.wake = func(wait time.Duration) { changes = append(changes, wait) }
	b.probeNow()
	if !b.nextProbeAt().IsZero() || len(changes) != 0 {
		t.Error("probeNow changed a closed breaker")
	}
	for range FailureThreshold {
		b.recordAttempt(Account{}, false, true, errServer)
	}
	for range 3 {
		now = now.Add(time.Minute)
		b.tryEnter(Account{})
		b.recordAttempt(Account{}, true, true, errServer)
	}
	if got := b.nextProbeAt().Sub(now); got != 8*time.Second {
		t.Errorf("the next probe is in %s", got)
	}
	waited := make(chan error, 1)
	waiting := make(chan struct{})
	go func() { close(waiting); waited <- b.wait(t.Context(), Account{}, false, nil) }()
	<-waiting
	b.probeNow()
	if err := <-waited; err != nil || changes[len(changes)-1] != 0 {
		t.Errorf("wait returned %v, changes %v", err, changes)
	}
	probe, ok := b.tryEnter(Account{})
	if !probe || !ok {
		t.Fatal("no probe may begin")
	}
	b.probeNow() // changes nothing for the running probe
	if _, ok := b.tryEnter(Account{}); ok {
		t.Error("two probes at once")
	}
	b.recordAttempt(Account{}, true, true, errServer)
	if got := b.nextProbeAt().Sub(now); got != 2*time.Second {
		t.Errorf("got open time %s", got)
	}
}

func TestIndicatesOutage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("connection refused"), true},
		{context.DeadlineExceeded, true},
		{fmt.Errorf("deliver: %w", &relay.ResponseError{Status: 503}), true},
		{relay.RetryAfter(&relay.ResponseError{Status: 429}, time.Second), true},
		{&relay.ResponseError{Status: 404}, false},
		{&relay.ResponseError{Status: 1}, false}, // the exit status of a command
		{relay.Permanent(&relay.ResponseError{Status: 400}), false},
		{relay.Gone(&relay.ResponseError{Status: 410}), false},
	} {
		if got := indicatesOutage(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}

// If a destination fails for one account only, others need not wait for it.
func TestBreaker_Suspect(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	b := newBreaker(func() time.Time { return now })
	fail := func(account string, isProbe bool) {
		t.Helper()
		if probe, ok := b.tryEnter(NewAccount(account)); probe != isProbe || !ok {
			t.Fatalf("attempt of %q: got probe %t, may start %t", account, probe, ok)
		}
		b.recordAttempt(NewAccount(account), isProbe, true, errServer)
	}
	wait := func(account string, canPostpone bool) error {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return b.wait(ctx, NewAccount(account), canPostpone, nil)
	}
	expectSuspect := func(want string) {
		t.Helper()
		got, ok := b.findSuspect()
		if ok != (want != "") || ok && got != NewAccount(want) {
			t.Fatalf("got suspect %v, want %q", got, want)
		}
	}
	for range FailureThreshold - 1 {
		fail("bad", false)
	}
	expectSuspect("") // it is closed
	fail("bad", false)
	expectSuspect("bad")
	if _, ok := b.tryEnter(NewAccount("bad")); ok || !errors.Is(wait("bad", true), context.Canceled) {
		t.Fatal("the suspect need not wait")
	}
	b.allowPostponing(NewAccount("other"))
	if !errors.Is(wait("bad", true), context.Canceled) {
		t.Fatal("the wrong account may be postponed")
	}
	b.allowPostponing(NewAccount("bad"))
	for range maxPostponed {
		if err := wait("bad", true); !errors.Is(err, ErrPostponed) {
			t.Fatalf("got %v", err)
		}
	}
	if !errors.Is(wait("bad", true), context.Canceled) {
		t.Fatal("more than the maximum may be postponed")
	}
	b.allowPostponing(NewAccount("bad"))
	expectSuspect("") // nothing is to be allowed
	if !errors.Is(wait("bad", false), context.Canceled) {
		t.Fatal("a batch was postponed")
	}

	if _, ok := b.tryEnter(Account{}); ok {
		t.Fatal("a delivery of an unknown account need not wait")
	}
	fail("good", true) // it does not wait, but the destination fails for it too
	expectSuspect("")
	if _, ok := b.tryEnter(NewAccount("good")); ok || !errors.Is(wait("bad", true), context.Canceled) {
		t.Fatal("an outage is regarded as the fault of one account")
	}
	for range suspectFailures {
		now = now.Add(maxOpenTime)
		fail("bad", true)
	}
	expectSuspect("bad")
	b.allowPostponing(NewAccount("bad"))
	if probe, ok := b.tryEnter(NewAccount("good")); !probe || !ok || wait("good", true) == nil {
		t.Fatal("want one probe at a time")
	}
	b.recordAttempt(NewAccount("good"), true, true, nil)
	expectSuspect("")
	if b.wait(t.Context(), NewAccount("bad"), true, nil) != nil {
		t.Error("still open")
	}
}
