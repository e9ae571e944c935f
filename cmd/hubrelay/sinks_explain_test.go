package main_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Values that differ between calls.
var masks = []struct{ pattern, with string }{
	{`[0-9a-f]{24}`, "ID"},
	{`v1,[A-Za-z0-9+/=]{44}`, "v1,SIGNATURE"},
	{`webhook-timestamp: \d+`, "webhook-timestamp: NOW"},
	{`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(Z| UTC)`, "NOW"},
	{`User-Agent: hubrelay/\S+`, "User-Agent: hubrelay/VERSION"},
	{`127\.0\.0\.1:9`, "HOST"},
	{`Content-Length: \d+`, "Content-Length: N"},
}

func masked(text string) string {
	for _, m := range masks {
		text = regexp.MustCompile(m.pattern).ReplaceAllString(text, m.with)
	}
	return text
}

const timingSinks = `
  alerts: {type: slack, url: "http://127.0.0.1:9/services/s3cret", allow_cidrs: [127.0.0.0/8]}
  gathered: {type: webhook, url: "http://127.0.0.1:9/", allow_cidrs: [127.0.0.0/8],
    digest: {wait: 1m, max: 50, by: [topic, cluster]}, rate: 90/m, burst: 5}
  lined: {type: webhook, url: "http://127.0.0.1:9/", allow_cidrs: [127.0.0.0/8], ordering: container, rate: 10/s}
  team: {type: slack, url: "http://127.0.0.1:9/services/s3cret", allow_cidrs: [127.0.0.0/8],
    digest: {wait: 10s, by: [hub]}}
`

func TestExplainTiming(t *testing.T) {
	t.Parallel()
	file := writeFile(t, tempDir(t), "hubrelay.yaml", daemonConfig{
		redis: `url: "memory:"`,
		sinks: timingSinks,
	}.renderYAML())
	const event = `{"topic":"container.error","object":{"id":"o1","error":"oops"},"context":{"hub_id":"h1",` +
		`"clusters":["production"]}}`
	args := []string{"sinks", "explain", "-c", file, "--event", "-"}
	out, errOut, code := call(t, nil, event, args...)
	if code != 0 || strings.Contains(out, "s3cret") {
		t.Fatalf("explain ended with %d:\n%s%s", code, out, errOut)
	}
	const data = `{"topic":"container.error","object":{"id":"o1","state":"","error":"oops"},` +
		`"context":{"hub_id":"h1","account_id":"",` +
		`"environments":[],"dns_zones":[],"clusters":["production"],"containers":[]},"flags":null}`
	const head = `  Content-Type: application/json
  User-Agent: hubrelay/VERSION
`
	hook := head + `  webhook-id: ID
  webhook-timestamp: NOW
  Content-Length: N

`
	slack := `  POST http://HOST/…
  Host: HOST
` + head + `  Content-Length: N

  {"text":"Something went wrong with a container as a whole · oops · o1 · hub h1","attachments":[`
	for _, want := range []string{
		`
alerts (slack) matches: topics is empty, which is all
  at most 1/s; events above the rate are combined into a digest
` + slack, `
gathered (webhook) matches: topics is empty, which is all
  collected for 1m by topic and cluster into a digest that lists up to 50; shown as a digest of one
  at most 90/m, up to 5 at once after a pause
  POST http://HOST/
  Host: HOST
` + hook + `  {"topic":"hubrelay.digest","digest":{"count":1,"more":0,"first":"NOW","last":"NOW",` +
			`"by":{"cluster":"production","topic":"container.error"},"topics":{"container.error":1}},` +
			`"notifications":[` + data + `]}
`, `
lined (webhook) matches: topics is empty, which is all
  at most 10/s
  in order of its hub, because it concerns no container or several
  POST http://HOST/
  Host: HOST
` + hook + "  " + data + "\n", `
team (slack) matches: topics is empty, which is all
  collected for 10s by hub into a digest that lists up to 20; shown as a digest of one
  at most 1/s
` + slack,
	} {
		name, _, _ := strings.Cut(strings.TrimSpace(want), " ")
		_, got, _ := strings.Cut(masked(out), "\n"+name+" (")
		if got = "\n" + name + " (" + got; !strings.HasPrefix(got, want) {
			t.Errorf("%s", cmp.Diff(want, got[:min(len(want), len(got))]))
		}
	}
	out, _, code = call(t, nil, event, append(args, "--json")...)
	var timings []string
	for line := range strings.Lines(out) {
		var e struct{ Timing []string }
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		timings = append(timings, e.Timing...)
	}
	if code != 0 || len(timings) != 7 || !strings.HasPrefix(timings[4], "in order of its hub") {
		t.Errorf("explain --json ended with %d and %s", code, fmt.Sprintf("%q", timings))
	}
}
