package host

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hubrelay/hubrelay/relay"
)

// says fails unless err is marked as unsettled or not, and contains all texts in one line.
func says(t *testing.T, err error, unsettled bool, texts ...string) {
	t.Helper()
	wants(t, err, relay.OutcomeRetry, texts...)
	if relay.IsIndeterminate(err) != unsettled {
		t.Errorf("%v: unsettled is %v", err, !unsettled)
	}
}

func TestDriver_Migrate(t *testing.T) {
	t.Parallel()
	r := newDriverRig(t, "driver", nil)
	described, err := r.Describe(t.Context())
	if err != nil || described.Name != "actor" || described.Version != "1.2.3" || len(described.Steps) != 2 {
		t.Fatalf("%+v, %v", described, err)
	}
	if err := r.configure("a", "b"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	last := map[string]relay.Progress{}
	if err := r.Migrate(t.Context(), order("move", "job-1"), func(p relay.Progress) { last[p.Step] = p }); err != nil {
		t.Fatal(err)
	}
	if at := last["copy"].Time; at.Before(began) || at.After(time.Now()) {
		t.Errorf("copy was reported without a time, and has %s", at)
	}
	for step, want := range map[string]relay.Progress{
		"copy":  {Step: "copy", Completed: true, Bytes: 2, Total: 2, Time: last["copy"].Time},
		"start": {Step: "start", Completed: true, Time: time.Unix(7, 0).UTC()},
	} {
		if !reflect.DeepEqual(last[step], want) {
			t.Errorf("%+v, want %+v", last[step], want)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if got, want := r.lines(), []string{"configure_a,b", "move_job-1_3_false", "closed"}; !slices.Equal(got, want) {
		t.Errorf("the driver was asked %v, want %v", got, want)
	}
	says(t, r.migrate("move", "job-2"), true, "the plugin was stopped")
}

func TestDriver_MigrateResults(t *testing.T) {
	t.Parallel()
	r := configured(t, nil)
	fail := r.migrate("fail", "job-1")
	says(t, fail, false, "no space left on b")
	unsettled := r.migrate("unsettled", "job-2")
	says(t, unsettled, true, "a does not respond")
	if !Answered(fail) || !Answered(unsettled) {
		t.Error("these are the driver's own answers")
	}
	if err := r.migrate("superseded", "job-3"); !errors.Is(err, relay.ErrSuperseded) {
		t.Errorf("superseded: %v", err)
	}
	panicked := r.migrate("panic", "job-4")
	says(t, panicked, true, "the plugin's Migrate panicked (string)")
	if strings.Contains(panicked.Error(), "secret") {
		t.Errorf("%q shows what was panicked with", panicked)
	}
	if r.count(EventStarted) != 1 {
		t.Errorf("events %v", r.events)
	}
}

// The end of the context stops its migration and no other.
func TestDriver_ContextEndsOnlyItsMigration(t *testing.T) {
	t.Parallel()
	r := configured(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	other, stop := context.WithCancel(t.Context())
	defer stop()
	first, second := r.begin(ctx, "slow", "job-1"), r.begin(other, "slow", "job-2")
	if err := r.Cancel(t.Context(), "job-2", 2); err != nil { // another lease
		t.Error(err)
	}
	cancel()
	err := <-first
	if !errors.Is(err, context.Canceled) || relay.IsIndeterminate(err) {
		t.Errorf("stopped: %v", err)
	}
	if err := r.Cancel(t.Context(), "job-1", 3); err != nil {
		t.Errorf("a late cancel: %v", err)
	}
	if slices.Contains(r.lines(), "stopped_job-2") {
		t.Error("the other was stopped too")
	}
	if err := r.Migrate(ctx, order("move", "job-3"), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("called with a context that had ended: %v", err)
	}
	stop()
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Errorf("the other: %v", err)
	}
}

// The end of the host stops migrations in a state from which they can continue.
func TestDriver_CloseStopsMigrations(t *testing.T) {
	t.Parallel()
	r := configured(t, nil)
	ended := r.begin(t.Context(), "slow", "job-1")
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	says(t, <-ended, true, "the migration was stopped")
	if got := r.lines(); !slices.Contains(got, "stopped_job-1") || got[len(got)-1] != "closed" ||
		r.count(EventKilled) != 0 {
		t.Errorf("%v, events %v", got, r.events)
	}
}

// A driver that crashes leaves its migration indeterminate. The next process is configured as before and continues.
func TestDriver_RestartsAfterCrash(t *testing.T) {
	t.Parallel()
	r := configured(t, nil)
	if err := r.configure("a", "b", "c"); err != nil {
		t.Fatal(err)
	}
	err := r.migrate("die", "job-1")
	says(t, err, true, "the plugin exited with status 4")
	if Answered(err) {
		t.Error("taken for an answer of the driver's own")
	}
	if err := r.migrate("move", "job-2"); err != nil {
		t.Fatal(err)
	}
	got := slices.DeleteFunc(r.lines(), func(line string) bool { return strings.HasPrefix(line, "configure") })
	if want := []string{"die_job-1_3_false", "die_job-1_3_false", "move_job-2_3_false"}; !slices.Equal(got, want) {
		t.Errorf("the driver was asked %v, want %v", got, want)
	}
	if n := len(r.lines()) - len(got); n < 4 || r.lines()[n-1] == "configure_a,b" {
		t.Errorf("%d processes were configured, want the common one again, and another one: %v", n, r.lines())
	}
}

// A migration that makes the driver crash ends others at most once, and they continue without an error.
func TestDriver_IsolatesMigrationsOfEndedProcess(t *testing.T) {
	t.Parallel()
	r := configured(t, nil)
	calls := func(call string) (n int) {
		for _, line := range r.lines() {
			if line == call {
				n++
			}
		}
		return n
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	other := r.begin(ctx, "slow", "job-1")
	for range 3 {
		says(t, r.migrate("die", "job-2"), true, "the plugin exited with status 4")
	}
	r.until("the other migration continues", func() bool { return calls("slow_job-1_3_false") == 2 })
	if n := calls("die_job-2_3_false"); n != 4 {
		t.Errorf("the crashing migration was called %d times, want 1 in the common process and 3 alone", n)
	}
	m := order("move", "job-2")
	m.Undo = true
	if err := r.Migrate(t.Context(), m, func(relay.Progress) {}); err != nil {
		t.Error(err)
	}
	select {
	case err := <-other:
		t.Fatalf("the other migration ended: %v", err)
	default:
	}
	cancel()
	if err := <-other; !errors.Is(err, context.Canceled) {
		t.Errorf("the other migration: %v", err)
	}
	if n := calls("slow_job-1_3_false"); n != 2 {
		t.Errorf("the other migration was called %d times, want 2", n)
	}
}

// While the common process does not run, because others make it crash, a migration runs in a separate process.
func TestDriver_MigratesWhileCommonProcessIsDown(t *testing.T) {
	t.Parallel()
	r := configured(t, func(o *Options) { o.Backoff, o.MaxBackoff = time.Hour, time.Hour })
	says(t, r.migrate("die", "job-1"), true, "the plugin exited with status 4")
	r.until("the common process is down", func() bool { return r.Status().State == StateFailed })
	if err := r.migrate("move", "job-2"); err != nil {
		t.Error(err)
	}
}

// A call that the driver did not get does not count as a failure.
func TestDriver_UndeliveredIsPostponed(t *testing.T) {
	t.Parallel()
	r := configured(t, nil)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.migrate("move", "job-1"); !relay.IsPostponed(err) || !relay.IsIndeterminate(err) {
		t.Errorf("after the end: got %v", err)
	}
	missing := newDriverRig(t, "driver", func(o *Options) { o.Command = []string{"/nonexistent"} })
	if err := missing.migrate("move", "job-1"); !relay.IsPostponed(err) || !relay.IsIndeterminate(err) {
		t.Errorf("without a program: got %v", err)
	}
}

// A migration that is called again in a separate process knows what the first call reported.
func TestDoneSteps(t *testing.T) {
	t.Parallel()
	var done doneSteps
	for _, p := range []relay.Progress{
		{Step: "copy", Bytes: 1}, {Step: "copy", Completed: true, Bytes: 2}, {Step: "start"}, {Step: "copy", Bytes: 3},
	} {
		done.add(p)
	}
	want := doneSteps{{Step: "copy", Completed: true, Bytes: 3}, {Step: "start"}}
	if !reflect.DeepEqual(done, want) {
		t.Errorf("got %+v, want %+v", done, want)
	}
}

// The end of the host ends the processes of single migrations, too.
func TestDriver_CloseStopsIsolatedMigrations(t *testing.T) {
	t.Parallel()
	r := configured(t, nil)
	r.isolated.addSuspect("job-1")
	ended := r.begin(t.Context(), "slow", "job-1")
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	says(t, <-ended, true, "the migration was stopped")
	says(t, r.migrate("move", "job-1"), true, "the plugin was stopped")
}

// A driver that stands still is killed.
func TestDriver_KillsHungProcess(t *testing.T) {
	t.Parallel()
	r := configured(t, func(o *Options) { o.HealthInterval, o.HealthTimeout = 50*time.Millisecond, 10*time.Second })
	ended := r.begin(t.Context(), "slow", "job-1")
	r.signal(syscall.SIGSTOP)
	r.until("it was noticed", func() bool {
		return r.count(EventHung) == 1 && strings.Contains(r.log.String(), "no response to 2 health checks within 10s each, the plugin was killed")
	})
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !relay.IsIndeterminate(err) {
		t.Errorf("got %v", err)
	}
}

// The same is true for a driver that does not stop a migration, and for its other migrations.
func TestDriver_KillsProcessThatIgnoresCancel(t *testing.T) {
	t.Parallel()
	r := configured(t, func(o *Options) { o.HangTimeout = 300 * time.Millisecond })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	deaf, other := r.begin(ctx, "deaf", "job-1"), r.begin(t.Context(), "slow", "job-2")
	cancel()
	says(t, <-deaf, true, "did not stop a migration within 300ms", "hang_timeout")
	r.until("it was noticed", func() bool { return r.count(EventHung) == 1 })
	r.until("the other migration continues", func() bool { return slices.Index(r.lines()[3:], "slow_job-2_3_false") >= 0 })
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	says(t, <-other, true, "the migration was stopped")
}

func TestDriver_StartFails(t *testing.T) {
	for name, c := range map[string]struct {
		mode   string
		change func(*Options)
		want   string
	}{
		"version":     {"version", nil, "the plugin has version 7 of the protocol and this relay version 1"},
		"a sink":      {"sdk", nil, "this program is a plugin of the kind sink, and was started as a driver"},
		"another one": {"strange", nil, "does not serve hubrelay.plugin.driver.v1.Driver"},
		"wrong hash":  {"driver", func(o *Options) { o.SHA256 = strings.Repeat("ab", 32) }, "sha256 pins abab"},
		"environment": {
			"environment", func(o *Options) { o.Env = []string{"GIVEN=yes"} },
			"the plugin exited with status 1 before it was ready",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("DAEMON_SECRET", "s3cret")
			r := newDriverRig(t, c.mode, func(o *Options) {
				o.MaxCrashes = 1
				if c.change != nil {
					c.change(o)
				}
			})
			says(t, r.migrate("move", "job-1"), true, c.want)
			if _, err := r.Describe(t.Context()); err == nil {
				t.Error("it has described itself")
			}
			if log := r.log.String(); strings.Contains(log, "s3cret") ||
				strings.Contains(log, "GIVEN=yes") != (name == "environment") {
				t.Errorf("the log is %s", log)
			}
		})
	}
}

// Rejected servers do not replace the accepted ones.
func TestDriver_RejectedServersReplaceNothing(t *testing.T) {
	t.Parallel()
	r := newDriverRig(t, "driver", nil)
	wants(t, r.configure("a", "bad"), relay.OutcomeRetry,
		"the plugin rejects its configuration: server bad: path is missing:; name a folder")
	says(t, r.migrate("move", "job-1"), true, "has not received any servers yet")
	if err := r.configure("a", "b"); err != nil {
		t.Fatal(err)
	}
	wants(t, r.configure("bad"), relay.OutcomeRetry, "server bad")
	says(t, r.migrate("die", "job-2"), true, "status 4")
	if err := r.migrate("move", "job-3"); err != nil {
		t.Error(err)
	}
}

// A driver that dies because of its servers, or rejects them after a restart, still receives other servers.
func TestDriver_ReplacesServersThatCrashIt(t *testing.T) {
	t.Parallel()
	r := configured(t, nil)
	wants(t, r.configure("deadly"), relay.OutcomeRetry, "the plugin exited with status 5")
	r.until("it was told again", func() bool { return r.count(EventStarted) > 2 })
	if err := r.configure("a", "b"); err != nil {
		t.Fatal(err)
	}
	if err := r.configure("a", "once"); err != nil {
		t.Fatal(err)
	}
	says(t, r.migrate("die", "job-1"), true, "server once: it is not there any more")
	says(t, r.migrate("move", "job-2"), true, "server once: it is not there any more")
	r.until("that was said", func() bool {
		return strings.Contains(r.log.String(), "driver rejected its servers")
	})
	if _, err := r.Describe(t.Context()); err != nil {
		t.Error(err)
	}
	if err := r.configure("a", "b"); err != nil {
		t.Fatal(err)
	}
	if err := r.migrate("move", "job-3"); err != nil {
		t.Error(err)
	}
}

func TestDriver_RejectedConfig(t *testing.T) {
	t.Parallel()
	r := newDriverRig(t, "driver", func(o *Options) { o.Config = []byte(`{"reprot":1}`) })
	if err := r.configure("a"); err == nil ||
		!strings.Contains(err.Error(), `config: reprot is an unknown key; did you mean report?`) {
		t.Errorf("configured: %v", err)
	}
}

// Reports that make no sense are left out, and do no harm.
func TestDriver_DropsInvalidProgress(t *testing.T) {
	t.Parallel()
	r := configured(t, nil)
	var got []string
	if err := r.Migrate(t.Context(), order("nonsense", "job-1"),
		func(p relay.Progress) { got = append(got, fmt.Sprint(p.Step, p.Total, len(p.Note))) }); err != nil {
		t.Fatal(err)
	}
	for _, line := range got {
		if strings.HasPrefix(line, "dance") || strings.Contains(line, "-1") || strings.Contains(line, "1048576") {
			t.Errorf("reported %s", line)
		}
	}
	// Between two sends, the latest report of a step replaces the previous one, so the steps may arrive in any order.
	isEnd := func(line string) bool { return line == "start0 0" || line == "start00" }
	if !slices.ContainsFunc(got, isEnd) ||
		!slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, "copy2") }) {
		t.Errorf("got %q, want the ends of both steps", got)
	}
	for _, want := range []string{"invalid progress report", "progress report was dropped"} {
		r.until(want, func() bool { return strings.Contains(r.log.String(), want) })
	}
}

// A process that the driver started in its own session survives the driver. Any other does not.
func TestDriver_ChildProcesses(t *testing.T) {
	t.Parallel()
	r := configured(t, nil)
	if err := r.migrate("children", "job-1"); err != nil {
		t.Fatal(err)
	}
	pid := func(name string) (pid int) {
		for _, line := range r.lines() {
			if text, ok := strings.CutPrefix(line, name+"_"); ok {
				pid, _ = strconv.Atoi(text)
			}
		}
		return pid
	}
	kept, lost := pid("kept"), pid("lost")
	if kept == 0 || lost == 0 {
		t.Fatal(r.lines())
	}
	t.Cleanup(func() { _ = syscall.Kill(kept, syscall.SIGKILL) })
	r.signal(syscall.SIGKILL)
	r.until("the other is gone", func() bool { return gone(lost) })
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if gone(kept) {
		t.Error("the process with a session of its own is gone too")
	}
}

// heldUp is a context that delays its caller as long as the detection of a dead plugin may take.
type heldUp struct{ context.Context }

func (h heldUp) Done() <-chan struct{} {
	time.Sleep(2 * exitTimeout)
	return h.Context.Done()
}

// Why a plugin has died is said however late we look.
func TestDriver_ReportsExitAfterStall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newMigrations(nil, relay.DriverDescription{}, nil, nil)
		died := errors.New("the plugin exited with status 4")
		l.failAll(died)
		l.ctx = heldUp{l.ctx}
		for range 100 { // which of the two is taken is chance
			if err := l.callError(status.Error(codes.Unavailable, "the connection is closing")); !errors.Is(err, died) {
				t.Fatal(err)
			}
		}
	})
}
