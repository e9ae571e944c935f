package main_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestFilters publishes different notifications to sinks with conditions, and then adds a sink that starts at the
// beginning of the log.
func TestFilters(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	hooks := receive(t, nil)
	wanted := map[string][]int{ // indexes of published notifications by path
		"/environments": {0, 1}, "/clusters": {0, 2}, "/containers": {1}, "/when": {1}, "/both": {0}, "/fails": {
			0, 1,
			3,
		}, "/all": {0, 1, 2, 3},
	}
	more := map[string]string{
		"/environments": `environments: [e1, e9]`, "/clusters": `clusters: [production]`,
		"/containers": `containers: [c2]`,
		"/when":       `when: 'object.state == "unhealthy" and any(context.containers, # endsWith "2")'`,
		"/both":       `environments: [e1], when: '"production" in context.clusters'`,
		// The last notification has no container, so the expression fails.
		"/fails": `when: 'context.containers[0] != "c3"'`, "/all": `when: ""`,
	}
	text := daemonConfig{redis: fmt.Sprintf("url: %q", server.URL())}
	for path, filter := range more {
		text.sinks += webhookSink(path[1:], hooks.url+path, ", "+filter)
	}
	d := serve(t, text)
	ids := d.Publish(t, "hub-1", "application/x-ndjson", strings.Join([]string{
		`{"topic":"container.created","context":{"environments":["e1"],"clusters":["staging","production"],` +
			`"containers":["c1"]}}`,
		`{"topic":"container.instance.health.status.changed","object":{"state":"unhealthy"},` +
			`"context":{"environments":["e9","e2"],"containers":["c1","c2"]}}`,
		`{"topic":"container.error","object":{"state":"unhealthy"},"context":{"environments":["e3"],` +
			`"clusters":["production"],"containers":["c3"]}}`,
		`{"topic":"job.created"}`,
	}, "\n"), nil)
	exactly := func(path string, places []int) {
		t.Helper()
		var want []string
		for _, i := range places {
			want = append(want, ids[i])
		}
		testkit.Eventually(t, path, hooks.acceptedAll(path, want))
		if got := hooks.of(path); len(got) != len(want) {
			t.Errorf("%s got %d, want %d: %v", path, len(got), len(want), got)
		}
	}
	for path, places := range wanted {
		exactly(path, places)
	}
	if text := d.Metrics(t); !strings.Contains(text, `hubrelay_sink_condition_failures_total{sink="fails"} 1`) ||
		!strings.Contains(text, `hubrelay_sink_condition_failures_total{sink="when"} 0`) {
		t.Error("the failure of the expression is not counted")
	}
	if log := d.Err.String(); strings.Count(log, "condition failed") != 1 ||
		!strings.Contains(log, "index out of range") {
		t.Errorf("the failure of the expression is not logged once:\n%s", d.Err.Tail(2000))
	}

	d.Stop(t)
	text.sinks += webhookSink("late", hooks.url+"/late",
		`, from: start, clusters: [production], when: 'object.state == "unhealthy"'`)
	serve(t, text)
	exactly("/late", []int{2})
}
