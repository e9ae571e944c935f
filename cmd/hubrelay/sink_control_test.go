package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// operator runs commands for one daemon.
type operator struct {
	t   *testing.T
	env []string
}

// run expects that a command exits with 0 and prints parts.
func (o operator) run(args string, parts ...string) string {
	o.t.Helper()
	out, errOut, code := call(o.t, o.env, "", strings.Fields(args)...)
	if err := errors.Join(hasAll(out, parts...)...); code != 0 || err != nil {
		o.t.Errorf("hubrelay %s ended with %d, %v:\n%s%s", args, code, err, out, errOut)
	}
	wantNarrow(o.t, args, out)
	return out
}

// sink returns a sink in the output of 'sinks list --json'.
func (o operator) sink(name string) (s struct {
	State                   string
	Waiting, Retrying, Dead int
},
) {
	o.t.Helper()
	for line := range strings.Lines(o.run("sinks list --json")) {
		var named struct{ Name string }
		if json.Unmarshal([]byte(line), &named) == nil && named.Name == name {
			if err := json.Unmarshal([]byte(line), &s); err != nil {
				o.t.Fatal(err)
			}
		}
	}
	return s
}

// TestSteering pauses, resumes, tests and replays sinks of a running daemon, and processes its dead letters.
func TestSteering(t *testing.T) {
	t.Parallel()
	var mended atomic.Bool
	hooks := receive(t, func(w http.ResponseWriter, h hook) {
		if h.path == "/picky" && !mended.Load() {
			http.Error(w, "no such hook", http.StatusUnprocessableEntity)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	d := serve(t, daemonConfig{
		redis: `url: "memory:"`,
		sinks: webhookSink("steady", hooks.url+"/steady", "") + webhookSink("picky", hooks.url+"/picky", ""),
	})
	o := operator{t, []string{"HUBRELAY_ADMIN=" + d.Admin}}
	begun := time.Now().UTC().Format(time.RFC3339Nano)
	ids := d.Publish(t, "hub-1", "application/x-ndjson", lines(5), nil)
	testkit.Eventually(t, "five deliveries and five dead letters", func() error {
		if dead := o.sink("picky").Dead; dead != 5 {
			return fmt.Errorf("%d are dead", dead)
		}
		return hooks.acceptedAll("/steady", ids)()
	})
	o.run("sinks list", "steady", "picky", "webhook", "active")
	o.run("sinks test steady", "delivered with status 204 after ", " ms")
	if _, errOut, code := call(t, o.env, "", "sinks", "test", "picky"); code != 1 || !strings.Contains(errOut, "422") {
		t.Errorf("the test of picky ended with %d: %s", code, errOut)
	}

	o.run("sinks pause steady", "steady is paused")
	more := d.Publish(t, "hub-1", "application/x-ndjson", lines(3), nil)
	testkit.Eventually(t, "the backlog of the paused sink", func() error {
		if s := o.sink("steady"); s.State != "paused" || s.Waiting != 3 {
			return fmt.Errorf("it is %+v", s)
		}
		return nil
	})
	o.run("sinks resume steady", "steady is active")
	testkit.Eventually(t, "the backlog to be delivered", hooks.acceptedAll("/steady", more))

	o.run("sinks replay steady --after "+begun, "again")
	all := append(ids, more...)
	testkit.Eventually(t, "everything once more", func() error {
		counts := map[string]int{}
		for _, h := range hooks.of("/steady") {
			counts[h.id]++
		}
		return missing(all, func(id string) bool { return counts[id] == 2 })
	})
	workThroughDeadLetters(o, hooks, &mended, all)

	for _, tc := range []struct{ args, part string }{
		{"sinks forget steady", "configur"},
		{"sinks pause unknown", "sinks list"},
		{"sinks replay steady --after yesterday", "2h"},
		{"deadletters show picky nothing", "deadletters list"},
	} {
		out, errOut, code := call(t, o.env, "", strings.Fields(tc.args)...)
		if code != 1 || !strings.Contains(errOut, tc.part) || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%s ended with %d: %s%s", tc.args, code, out, errOut)
		}
	}
}

func workThroughDeadLetters(o operator, hooks *receiver, mended *atomic.Bool, ids []string) {
	t := o.t
	t.Helper()
	testkit.Eventually(t, "all to be dead letters", func() error {
		if dead := o.sink("picky").Dead; dead != len(ids) {
			return fmt.Errorf("%d are dead", dead)
		}
		return nil
	})
	o.run("deadletters list picky --since 1h --hub hub-1", append([]string{"422"}, ids...)...)
	o.run("deadletters list picky --hub hub-2", "no dead letters match")
	o.run("deadletters list picky --topic !container.*", "no dead letters")
	o.run("deadletters show picky "+ids[0], ids[0], "attempts: 1", "422", "no such hook", `"topic": "container.`)
	o.run("deadletters drop picky "+ids[0], "dropped 1 ")
	o.run("deadletters drop picky --all --yes --hub hub-2", "dropped 0 ")
	mended.Store(true)
	o.run("deadletters replay picky "+ids[1], "replayed 1 ")
	o.run("deadletters replay picky --all", fmt.Sprintf("replayed %d ", len(ids)-2))
	testkit.Eventually(t, "the dead letters to be delivered", func() error {
		counts := map[string]int{}
		for _, h := range hooks.of("/picky") {
			counts[h.id]++
		}
		return missing(ids[1:], func(id string) bool { return counts[id] >= 2 })
	})
	if s := o.sink("picky"); s.Dead != 0 {
		t.Errorf("%d dead letters are left", s.Dead)
	}
}
