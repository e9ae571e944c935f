package main_test

import (
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestListen_EscapesControlsInTerminal receives a notification that would change the title of a terminal or reverse text.
func TestListen_EscapesControlsInTerminal(t *testing.T) {
	t.Parallel()
	d := serve(t, daemonConfig{redis: `url: "memory:"`})
	c := startInTerminal(t, tempDir(t), "listen", "--json", "--url", "http://"+d.Public, "--key", opsKey, "--hub", "hub-1")
	testkit.Eventually(t, "the listener to be connected", c.said.Contains("connected"))
	d.Publish(t, "hub-1", "application/json", `{"topic":"job.created","context":{"note":"a\u009d0;title\u009c\u202eb"}}`, nil)
	testkit.Eventually(t, "the event", c.said.Contains(`a\u009d0;title\u009c\u202eb`))
	if said := c.said.String(); strings.ContainsAny(said, "\u009d\u009c\u202e") {
		t.Errorf("got %q, want no control characters", said)
	}
}
