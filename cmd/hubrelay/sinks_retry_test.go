package main_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestSinksRetry has a receiver that is available hours before the next attempt. One command at either node delivers
// the scheduled retries.
func TestSinksRetry(t *testing.T) {
	t.Parallel()
	var mended atomic.Bool
	hooks := receive(t, func(w http.ResponseWriter, _ hook) {
		if !mended.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	server := redistest.Start(t)
	slow := func(name, more string) string {
		const sink = "  %s: {type: webhook, url: %q, allow_cidrs: [127.0.0.0/8], retry: {schedule: [2h, 2h]}%s}\n"
		return fmt.Sprintf(sink, name, hooks.url+"/"+name, more)
	}
	s := daemonConfig{redis: fmt.Sprintf("url: %q", server.URL()), sinks: slow("billing", "") +
		slow("ordered", ", ordering: hub")}
	d, other := serve(t, s), serve(t, s)
	o := operator{t, []string{"HUBRELAY_ADMIN=" + d.Admin}}
	ids := d.Publish(t, "hub-1", "application/x-ndjson", lines(5), nil)
	for _, name := range []string{"billing", "ordered"} {
		testkit.Eventually(t, "all to wait", func() error {
			if s := o.sink(name); s.Retrying != len(ids) || s.Waiting != 0 {
				return fmt.Errorf("%s is %+v", name, s)
			}
			return nil
		})
	}
	o.run("sinks pause billing", "billing is paused")
	if out, errOut, code := call(t, o.env, "", "sinks", "retry", "billing"); code != 1 ||
		!strings.Contains(errOut, "sinks resume billing") {
		t.Errorf("ended with %d: %s%s", code, out, errOut)
	}
	o.run("sinks resume billing", "billing is active")

	mended.Store(true)
	o.run("sinks retry billing", "billing retries 5 deliveries now")
	testkit.Eventually(t, "all to be delivered", hooks.acceptedAll("/billing", ids))
	second := operator{t, []string{"HUBRELAY_ADMIN=" + other.Admin}}
	second.run("sinks retry ordered --json", `"started":1`) // the others follow
	testkit.Eventually(t, "all to be delivered in order", hooks.acceptedAll("/ordered", ids))
	var order []string
	for _, h := range hooks.of("/ordered")[1:] {
		order = append(order, h.id)
	}
	if got := strings.Join(order, " "); got != strings.Join(ids, " ") {
		t.Errorf("delivered in the order %s, want %v", got, ids)
	}
	testkit.Eventually(t, "nothing to wait", func() error {
		if s := o.sink("billing"); s.Retrying != 0 {
			return fmt.Errorf("it is %+v", s)
		}
		return nil
	})
	o.run("sinks retry billing", "billing has no deliveries to retry")
	if _, errOut, code := call(t, o.env, "", "sinks", "retry", "nobody"); code != 1 ||
		!strings.Contains(errOut, "sinks list") {
		t.Errorf("ended with %d: %s", code, errOut)
	}
}
