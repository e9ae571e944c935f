package examples

import (
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// testEventSource uses EventSource of Chromium over a connection that is cut. It reconnects automatically with the
// same token and the last id.
func testEventSource(t *testing.T, d *daemon) {
	p := published{hub: "hub-" + rand.Text(), topic: "container.state.changed", state: "running", object: rand.Text()}
	server := start(t, append(d.env(p.hub), "PORT="+d.pagePort), "node", "listen-browser/server.mjs")
	server.Line(t, "its address", func(l string) bool { return strings.HasPrefix(l, "open http") })
	way := testkit.StartProxy(t, func() string { return d.Public })
	b := startBrowser(t)
	b.call(t, "/url", map[string]any{"url": "http://127.0.0.1:" + d.pagePort + "/"})
	const script = `
		const source = new EventSource(arguments[0]);
		source.onopen = () => document.body.append(" opened ");
		source.onmessage = (event) => document.body.append(" <" + JSON.parse(event.data).object.id + "> ");`
	b.call(t, "/execute/sync", map[string]any{"script": script, "args": []any{
		"http://" + way.Addr() + notificationsPath + "?token=" + d.Token(t, d.Key, p.hub),
	}})
	b.shows(t, "opened")
	want := ""
	for i := range 3 {
		way.Cut()
		for k := range 2 {
			p.object = fmt.Sprintf("%d-%d", i, k)
			publishers["curl"](t, d, p)
			want += "<" + p.object + ">"
		}
		b.shows(t, "<"+p.object+">")
	}
	var text string
	b.decode(t, b.call(t, "/execute/sync",
		map[string]any{
			"script": "return document.body.textContent.match(/<[0-9-]+>/g).join('')",
			"args":   []any{},
		}), &text)
	if text != want {
		t.Errorf("the page got %s, want %s", text, want)
	}
}
