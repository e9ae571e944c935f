package main_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestSink_FailsForOneAccount has a receiver that fails for the events of one account. Those of another are delivered although
// hundreds of its events are before them in the queue, and all wait for their retry.
func TestSink_FailsForOneAccount(t *testing.T) {
	t.Parallel()
	const n = 300
	hooks := receive(t, func(w http.ResponseWriter, h hook) {
		if strings.Contains(h.body, `"account_id":"bad"`) {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	sinks := fmt.Sprintf("  hook: {type: webhook, url: %q, allow_cidrs: [127.0.0.0/8], concurrency: 4, "+
		"retry: {schedule: [2h]}}\n", hooks.url+"/hook")
	d := serve(t, daemonConfig{sinks: sinks})
	event := func(account string) string {
		return fmt.Sprintf(`{"topic":"container.created","object":{"id":"1"},"context":{"account_id":%q}}`+"\n", account)
	}
	d.Publish(t, "hub-1", "application/x-ndjson", strings.Repeat(event("bad"), n), nil)
	ids := d.Publish(t, "hub-1", "application/x-ndjson", event("good"), nil)
	testkit.Eventually(t, "the event of the other account", hooks.acceptedAll("/hook", ids))
	o := operator{t, []string{"HUBRELAY_ADMIN=" + d.Admin}}
	testkit.Eventually(t, "all others to wait for their retry", func() error {
		if s := o.sink("hook"); s.Retrying != n || s.Waiting != 0 {
			return fmt.Errorf("it is %+v", s)
		}
		return nil
	})
}
