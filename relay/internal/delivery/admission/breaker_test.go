package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
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
	attempt := func(err error) {
		t.Helper()
		probe, ok := b.tryEnter(Account{})
		if !ok {
			t.Fatal("no attempt may begin")
		}
		b.recordAttempt(Account{}, probe, true, err)
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
		if probe, ok := b.tryEnter(Account{}); probe != sinkProbe || !ok || !refused() {
			t.Fatal("want one probe at a time")
		}
		b.recordAttempt(Account{}, sinkProbe, true, errServer)
	}
	now = now.Add(time.Minute)
	probe, _ := b.tryEnter(Account{})
	b.recordAttempt(Account{}, probe, false, context.Canceled) // aborted: another probe may start at once
	attempt(nil)
	if refused() {
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
		b.recordAttempt(Account{}, ordinaryAttempt, true, errServer)
	}
	for range 3 {
		now = now.Add(time.Minute)
		b.tryEnter(Account{})
		b.recordAttempt(Account{}, sinkProbe, true, errServer)
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
	if probe != sinkProbe || !ok {
		t.Fatal("no probe may begin")
	}
	b.probeNow() // changes nothing for the running probe
	if _, ok := b.tryEnter(Account{}); ok {
		t.Error("two probes at once")
	}
	b.recordAttempt(Account{}, sinkProbe, true, errServer)
	if got := b.nextProbeAt().Sub(now); got != 2*time.Second {
		t.Errorf("got open time %s", got)
	}
}

// A destination that redirects, or rejects the credentials of the sink, does so for all events.
func TestBreaker_OpensForWrongSink(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]bool{307: true, 401: true, 403: false, 404: false} {
		b := newBreaker(time.Now)
		for range FailureThreshold {
			b.recordAttempt(Account{}, ordinaryAttempt, true, &relay.ResponseError{Status: status})
		}
		if got := !b.nextProbeAt().IsZero(); got != want {
			t.Errorf("status %d: open %t, want %t", status, got, want)
		}
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
		if got := IndicatesOutage(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}

// breakerRig is a breaker whose attempts end at once.
type breakerRig struct {
	*testing.T
	*breaker
	time time.Time
}

func newBreakerRig(t *testing.T) *breakerRig {
	r := &breakerRig{T: t, time: time.Unix(1000, 0)}
	r.breaker = newBreaker(func() time.Time { return r.time })
	return r
}

// attempt makes an attempt, which must be of a kind.
func (r *breakerRig) attempt(account string, want attemptKind, err error) {
	r.Helper()
	p, ok := r.tryEnter(NewAccount(account))
	if p != want || !ok {
		r.Fatalf("attempt of %q: got kind %d, may start %t, want %d", account, p, ok, want)
	}
	r.recordAttempt(NewAccount(account), p, true, err)
}

func (r *breakerRig) fail(account string, want attemptKind, count int) {
	r.Helper()
	for range count {
		r.attempt(account, want, errServer)
	}
}

// expectWait expects that no attempt of the account may start, and whether its fresh deliveries are postponed.
func (r *breakerRig) expectWait(account Account, isPostponed bool) {
	r.Helper()
	if _, ok := r.tryEnter(account); ok {
		r.Fatalf("an attempt of %v may start", account)
	}
	ctx, cancel := context.WithCancel(r.Context())
	cancel()
	want := context.Canceled
	if isPostponed {
		want = ErrPostponed
	}
	if err := r.wait(ctx, account, true, nil); !errors.Is(err, want) {
		r.Fatalf("%v waits with %v, want %v", account, err, want)
	}
	if err := r.wait(ctx, account, false, nil); !errors.Is(err, context.Canceled) {
		r.Fatalf("%v, which cannot be postponed, waits with %v", account, err)
	}
}

func (r *breakerRig) expectFailing(want ...string) {
	r.Helper()
	got, ok := r.listFailed()
	slices.Sort(got)
	if ok != (len(want) > 0) || !slices.Equal(got, want) {
		r.Fatalf("got failing accounts %v, want %v", got, want)
	}
}

// If a destination fails for some accounts, another one finds out that it works, and does not wait for them.
func TestBreaker_FailingAccounts(t *testing.T) {
	t.Parallel()
	for _, bad := range [][]string{{"a"}, {"a", "b"}, {"a", "b", "c", ""}} {
		r := newBreakerRig(t)
		for i := range FailureThreshold {
			r.fail(bad[i%len(bad)], ordinaryAttempt, 1)
		}
		r.expectFailing(sorted(bad)...)
		for _, name := range bad {
			r.expectWait(NewAccount(name), false)
		}
		r.expectWait(Account{}, false)
		r.allowPostponing()
		r.expectFailing() // they may be postponed already
		for range maxPostponed - len(bad) {
			if !r.postponeLocked(NewAccount(bad[0])) {
				t.Fatal("too few are postponed")
			}
		}
		for _, name := range bad {
			r.expectWait(NewAccount(name), true)
		}
		r.expectWait(NewAccount(bad[0]), false)
		r.attempt("good", earlyProbe, nil)
		r.attempt("good", ordinaryAttempt, nil)
	}
}

func sorted(names []string) []string {
	names = slices.Clone(names)
	slices.Sort(names)
	return names
}

// If it fails for all accounts, each has one early probe.
func TestBreaker_FailsForAllAccounts(t *testing.T) {
	t.Parallel()
	r := newBreakerRig(t)
	r.fail("0", ordinaryAttempt, FailureThreshold)
	r.allowPostponing()
	probeAt := r.nextProbeAt()
	for i := range 200 {
		name := strconv.Itoa(i + 1)
		if _, ok := r.tryEnter(NewAccount(name)); !ok {
			if i != maxFailedAccounts-1 {
				t.Fatalf("account %d may not probe", i)
			}
			break
		}
		r.recordAttempt(NewAccount(name), earlyProbe, true, errServer)
		r.expectWait(NewAccount(name), false) // the queue must be searched again
	}
	if r.nextProbeAt() != probeAt {
		t.Error("early probes delay the next one")
	}
	r.expectFailing() // too many
	r.time = r.time.Add(maxOpenTime)
	r.attempt("7", sinkProbe, nil)
	r.attempt("8", ordinaryAttempt, nil)
}

// An account that fails while others succeed has its own circuit breaker.
func TestBreaker_OfAccount(t *testing.T) {
	t.Parallel()
	r := newBreakerRig(t)
	for range FailureThreshold {
		r.fail("bad", ordinaryAttempt, 1)
		r.attempt("good", ordinaryAttempt, nil)
	}
	for pause := minOpenTime; pause <= 4*maxOpenTime; pause *= openTimeGrowth {
		r.expectWait(NewAccount("bad"), true)
		if !r.isFailing(NewAccount("bad")) || r.isFailing(NewAccount("good")) {
			t.Fatal("want the circuit breaker of one account")
		}
		r.attempt("good", ordinaryAttempt, nil)
		r.time = r.time.Add(min(pause, maxOpenTime))
		r.fail("bad", accountProbe, 1)
	}
	if r.nextProbeAt() != (time.Time{}) {
		t.Error("its failures count for the sink")
	}
	r.probeNow()
	p, ok := r.tryEnter(NewAccount("bad"))
	if p != accountProbe || !ok {
		t.Fatal("an operator has to wait")
	}
	r.expectWait(NewAccount("bad"), true) // one probe at a time
	r.recordAttempt(NewAccount("bad"), p, false, context.Canceled)
	r.attempt("bad", accountProbe, nil)
	r.attempt("bad", ordinaryAttempt, nil)

	// In an outage of the destination, all wait.
	r.fail("good", ordinaryAttempt, FailureThreshold)
	r.fail("bad", earlyProbe, 1)
	r.expectWait(NewAccount("bad"), false)
	r.expectWait(NewAccount("good"), false)
	if r.isFailing(NewAccount("good")) {
		t.Error("an outage is regarded as the fault of one account")
	}
}

// After an outage of all accounts, the destination recovers for some only.
func TestBreaker_RecoversForOthers(t *testing.T) {
	t.Parallel()
	r := newBreakerRig(t)
	r.fail("good", ordinaryAttempt, FailureThreshold/2)
	r.fail("bad", ordinaryAttempt, FailureThreshold/2)
	r.fail("bad2", earlyProbe, 1)
	r.expectFailing("bad", "bad2", "good")
	for i := range probesUntilForgotten {
		r.expectWait(NewAccount("good"), false)
		r.time = r.time.Add(maxOpenTime)
		r.fail([]string{"bad", "bad2"}[i%2], sinkProbe, 1) // different accounts
	}
	r.expectFailing("bad")
	r.allowPostponing()
	r.time = r.time.Add(maxOpenTime)
	p, ok := r.tryEnter(NewAccount("bad"))
	if p != sinkProbe || !ok {
		t.Fatal("the next probe may not start")
	}
	r.expectWait(NewAccount("bad"), false) // during a probe, nothing is postponed
	r.recordAttempt(NewAccount("bad"), p, true, errServer)
	r.expectWait(NewAccount("bad"), true)
	r.attempt("good", earlyProbe, nil)
	r.attempt("good", ordinaryAttempt, nil)
}

// While the destination fails, more retries are claimed than may start, to find accounts that may probe.
func TestBreaker_SearchesRetries(t *testing.T) {
	t.Parallel()
	r := newBreakerRig(t)
	r.maxSearched = maxSearchedRetries
	expect := func(want int) {
		t.Helper()
		total := 0
		for {
			n, wait := r.maxRetries(300)
			if n == 0 && wait == 0 {
				t.Fatal("the next probe is not awaited")
			}
			if total += n; n == 0 {
				break
			}
		}
		if total != want {
			t.Fatalf("%d retries may be claimed, want %d", total, want)
		}
	}
	if n, _ := r.maxRetries(7); n != 7 {
		t.Errorf("%d retries may start, want 7", n)
	}
	r.fail("a", ordinaryAttempt, FailureThreshold)
	expect(maxSearchedRetries)
	for range 2 {
		for range probesUntilForgotten - 1 {
			r.time = r.time.Add(maxOpenTime)
			r.fail("a", sinkProbe, 1)
			expect(0)
		}
		r.time = r.time.Add(maxOpenTime)
		p, _ := r.tryEnter(NewAccount("a"))
		if n, _ := r.maxRetries(1); n != 0 {
			t.Error("retries are claimed during a probe")
		}
		r.recordAttempt(NewAccount("a"), p, true, errServer)
		expect(maxSearchedRetries)
	}
}

// Accounts that have not failed probe at the same time, one delivery each, so slow ones do not delay others.
func TestBreaker_EarlyProbesAtOnce(t *testing.T) {
	t.Parallel()
	r := newBreakerRig(t)
	r.fail("bad", ordinaryAttempt, FailureThreshold)
	r.allowPostponing()
	for i := range maxFailedAccounts - 1 {
		account := NewAccount(strconv.Itoa(i))
		if p, ok := r.tryEnter(account); p != earlyProbe || !ok {
			t.Fatalf("account %d may not probe", i)
		}
		r.expectWait(account, false)
	}
	r.expectWait(NewAccount("one too many"), false)
	r.expectWait(NewAccount("bad"), true)
	r.time = r.time.Add(maxOpenTime)
	r.attempt("bad", sinkProbe, errServer)
	r.recordAttempt(NewAccount("0"), earlyProbe, false, context.Canceled)
	r.recordAttempt(NewAccount("1"), earlyProbe, true, errServer)
	r.attempt("0", earlyProbe, nil)
	r.recordAttempt(NewAccount("2"), earlyProbe, true, errServer) // the breaker is closed now
	r.attempt("2", ordinaryAttempt, nil)
}

// A success of others at the beginning of an outage, or long ago, does not make it the fault of one account.
func TestBreaker_OutageAfterSuccess(t *testing.T) {
	t.Parallel()
	r := newBreakerRig(t)
	r.fail("most", ordinaryAttempt, 1)
	r.attempt("seldom", ordinaryAttempt, nil)
	r.fail("most", ordinaryAttempt, FailureThreshold)
	if r.nextProbeAt().IsZero() {
		t.Error("the breaker of the sink is closed")
	}

	r = newBreakerRig(t)
	for range FailureThreshold {
		r.fail("most", ordinaryAttempt, 1)
		r.attempt("seldom", ordinaryAttempt, nil)
	}
	r.time = r.time.Add(forgetAfter + time.Second)
	r.fail("most", accountProbe, FailureThreshold)
	if r.nextProbeAt().IsZero() {
		t.Error("the breaker of the sink is closed long after the last success")
	}
	r.time = r.time.Add(2 * forgetAfter)
	r.attempt("most", sinkProbe, nil)
	r.fail("most", ordinaryAttempt, 1)
	r.time = r.time.Add(forgetAfter + time.Second)
	if got := r.failingAccounts(); len(got) != 0 || len(r.accounts) != 0 {
		t.Errorf("old failures are known: %v, %d", got, len(r.accounts))
	}
}
