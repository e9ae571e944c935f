package main_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestSink_FailsForSomeAccounts has a receiver that fails for the events of two accounts. Those of another are delivered although
// hundreds of their events are before them in the queue, and so is its retry. All others wait for their retry.
func TestSink_FailsForSomeAccounts(t *testing.T) {
	t.Parallel()
	const n = 150
	hooks := receive(t, func(w http.ResponseWriter, h hook) {
		if strings.Contains(h.body, `"account_id":"bad`) || strings.Contains(h.body, `"flaky"`) && h.attempt == 1 {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	sinks := fmt.Sprintf("  hook: {type: webhook, url: %q, allow_cidrs: [127.0.0.0/8], concurrency: 4, "+
		"retry: {schedule: [2s, 2h]}}\n", hooks.url+"/hook")
	d := serve(t, daemonConfig{sinks: sinks})
	event := func(account, id string) string {
		return fmt.Sprintf(`{"topic":"container.created","object":{"id":%q},"context":{"account_id":%q}}`+"\n", id, account)
	}
	d.Publish(t, "hub-1", "application/x-ndjson", strings.Repeat(event("bad1", "1")+event("bad2", "1"), n), nil)
	ids := d.Publish(t, "hub-1", "application/x-ndjson", event("good", "1")+event("good", "flaky"), nil)
	testkit.Eventually(t, "the events of the other account", hooks.acceptedAll("/hook", ids))
	o := operator{t, []string{"HUBRELAY_ADMIN=" + d.Admin}}
	testkit.Eventually(t, "all others to wait for their retry", func() error {
		if s := o.sink("hook"); s.Retrying != 2*n || s.Waiting != 0 {
			return fmt.Errorf("it is %+v", s)
		}
		return nil
	})
}
