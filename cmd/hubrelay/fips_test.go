package main_test

import (
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestFIPS relays notifications in the strict mode of Go's FIPS 140 module, which panics on other algorithms.
func TestFIPS(t *testing.T) {
	t.Parallel()
	hooks := receive(t, nil)
	d := serve(t, daemonConfig{
		redis: `max_memory: 64MiB`,
		sinks: webhookSink("hook", hooks.url+"/", ", ordering: hub"),
		env: []string{
			"GODEBUG=fips140=only", "HUBRELAY_AUDIT__HASH_CHAIN=true", "HUBRELAY_AUDIT__FILE=" + tempDir(t) + "/audit.log",
		},
	})
	ws := d.connect(t, opsKey, "hub-1", "")
	listener := start(t, []string{
		"GODEBUG=fips140=only", "HUBRELAY_URL=http://" + d.Public, "HUBRELAY_KEY=" + opsKey, "HUBRELAY_HUB=hub-1",
	}, "listen", "--json")
	testkit.Eventually(t, "the listener to be connected", listener.Err.Contains("connected"))
	ids := d.Publish(t, "hub-1", "application/x-ndjson", lines(5), nil)
	testkit.Eventually(t, "the websocket to receive", ws.receivedAll(ids))
	testkit.Eventually(t, "the webhook to receive", hooks.acceptedAll("/", ids))
	revocation := testkit.Request{Method: "DELETE", Path: notificationsPath + "/token?token=" + d.Token(t, opsKey, "hub-1")}
	if r := d.Do(t, revocation); r.Status != 204 {
		t.Errorf("revoke: got %d %s", r.Status, r.Body)
	}
	if _, errOut, code := call(t, nil, "", "sinks", "pause", "hook", "--admin", d.Admin); code != 0 {
		t.Errorf("pause: %d %s", code, errOut)
	}
}
