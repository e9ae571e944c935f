package exec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

// After the timeout, the command and its child processes end soon, whatever they do.
func TestTimeLimit(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"sleeps":          `echo $$ > "$PID"; sleep 1000`,
		"ignores SIGTERM": `trap '' TERM; echo $$ > "$PID"; while :; do sleep 1; done`,
		"forks":           `(trap '' TERM; sh -c 'echo $$ > "$PID"; while :; do sleep 1; done') & wait`,
		"fills the pipe":  `echo $$ > "$PID"; trap '' TERM; yes`,
		"stops":           `echo $$ > "$PID"; kill -STOP $$; sleep 1000`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pid := filepath.Join(t.TempDir(), "pid")
			program := script(t, text)
			s := openTest(t, &Config{Command: []string{program}, Env: []string{"PID=" + pid}})
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() {
				awaitContent(t, pid)
				cancel(context.DeadlineExceeded) // as soon as it runs
			}()
			err := s.Deliver(ctx, sinktest.SampleDigest("d", 900, 900))
			if outcome, _ := relay.Classify(err); outcome != relay.OutcomeRetry || !errors.Is(err,
				context.DeadlineExceeded) ||
				!strings.Contains(err.Error(), program+" did not end in time and was terminated") {
				t.Errorf("%s: %v", outcome, err)
			}
			gone(t, pid)
		})
	}
}

// A command that was terminated has failed, even if it then ends with a status that would settle the delivery.
func TestDeliver_TerminatedCommandIsRetried(t *testing.T) {
	t.Parallel()
	for _, status := range []int{0, dataError} {
		for cause, want := range map[error]string{
			context.DeadlineExceeded: "did not end in time and was terminated",
			context.Canceled:         "was terminated",
		} {
			t.Run(fmt.Sprint(status, " ", cause), func(t *testing.T) {
				t.Parallel()
				ready := filepath.Join(t.TempDir(), "ready")
				text := fmt.Sprintf(`trap 'exit %d' TERM; echo x > "$READY"; while :; do sleep 0.01; done`, status)
				s := openTest(t, &Config{Command: []string{script(t, text)}, Env: []string{"READY=" + ready}})
				ctx, cancel := context.WithCancelCause(t.Context())
				go func() {
					awaitContent(t, ready)
					cancel(cause)
				}()
				err := s.Deliver(ctx, sinktest.Sample("a"))
				if outcome, _ := relay.Classify(err); outcome != relay.OutcomeRetry || !strings.Contains(err.Error(), want) {
					t.Errorf("got %s: %v, want %s: %s", outcome, err, relay.OutcomeRetry, want)
				}
			})
		}
	}
}

// No exit status counts after SIGTERM.
func TestClassify_IgnoresStatusAfterSIGTERM(t *testing.T) {
	t.Parallel()
	for _, status := range []int{0, dataError, 1, 143} {
		cmd := exec.Command("/bin/sh", "-c", fmt.Sprint("exit ", status))
		err := cmd.Run()
		if _, err = (&command{program: "sh"}).classify(endedContext{t.Context()}, exitResult{cmd.ProcessState, err, true}); err == nil {
			t.Errorf("status %d: got no error", status)
		}
	}
}

// endedContext is a context that has just ended without notification.
type endedContext struct{ context.Context }

func (endedContext) Err() error { return context.DeadlineExceeded }

// A command that ends before SIGTERM counts as ended by itself, and a command that cannot start reports the reason.
func TestDeliver_EndedBeforeSIGTERM(t *testing.T) {
	t.Parallel()
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte("x"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ program, want string }{
		{script(t, `exit 3`), "ended with status 3"},
		{script(t, `kill -KILL $$`), "was terminated by signal 9"},
		{garbage, "not a program for this machine"},
	} {
		err := openTest(t, &Config{Command: []string{c.program}}).Deliver(endedContext{t.Context()}, sinktest.Sample("a"))
		if outcome, _ := relay.Classify(err); outcome != relay.OutcomeRetry ||
			!strings.Contains(err.Error(), c.want) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", outcome, err)
		}
	}
}
