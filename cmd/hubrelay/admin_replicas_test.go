package main_test

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// With redis.min_replicas, a command that changes something succeeds only if a failover cannot undo the change.
func TestAdmin_WaitsForReplicas(t *testing.T) {
	t.Parallel()
	primary, replica := redistest.StartPair(t, redistest.FreePort(t))
	hooks := receive(t, func(w http.ResponseWriter, _ hook) { w.WriteHeader(http.StatusNoContent) })
	d := serve(t, daemonConfig{
		redis: fmt.Sprintf("url: %q, min_replicas: 1", primary.URL()), sinks: webhookSink("hook", hooks.url, ""),
	})
	run := func(args string) (text string, code int) {
		t.Helper()
		out, errOut, code := call(t, []string{"HUBRELAY_ADMIN=" + d.Admin}, "", strings.Fields(args)...)
		return out + errOut, code
	}
	testkit.Eventually(t, "the replica to be up to date", func() error {
		if text, code := run("keys create ci --hub h --account acme"); code != 0 && !strings.Contains(text, "exists") {
			return fmt.Errorf("%s", text)
		}
		text, code := run("keys rotate ci --overlap 0s")
		if code != 0 {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
	replica.Signal(syscall.SIGSTOP)
	const undone, stored = "the change was undone, because too few replicas", "too few replicas have it"
	for _, c := range []struct{ args, want string }{
		{"keys rotate ci --overlap 0s", undone},
		{"keys create other --hub h --account acme", undone},
		{"keys revoke ci", stored},
		{"sinks pause hook", stored},
		{"sinks replay hook --after 1h --yes", stored},
	} {
		if text, code := run(c.args); code != 1 || !strings.Contains(text, c.want) {
			t.Errorf("%s ended with %d: %s", c.args, code, text)
		}
	}
	for _, args := range []string{"sinks test hook", "sinks replay hook --after 1h --dry-run", "streams explain --key ops --hub h", "sinks list"} { // these change nothing
		if text, code := run(args); code != 0 {
			t.Errorf("%s ended with %d: %s", args, code, text)
		}
	}
	replica.Signal(syscall.SIGCONT)
	testkit.Eventually(t, "the replica to confirm changes", func() error {
		if text, code := run("sinks resume hook"); code != 0 {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
}
