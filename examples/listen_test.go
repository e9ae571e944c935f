package examples

import (
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// testPythonGoesOn checks that a notification sent during a lost connection arrives once, even if it is the first
// one.
func testPythonGoesOn(t *testing.T, d *daemon) {
	way := testkit.StartProxy(t, func() string { return d.Public })
	hub := "hub-" + rand.Text()
	env := append(d.env(hub), "HUBRELAY_URL=http://"+way.Addr())
	listener := start(t, env, pythonWith(t, "websockets"), "listen-python/listen.py")
	listener.Line(t, "that it is ready", func(l string) bool { return strings.Contains(l, "listening to hub") })
	var want []string
	for n := range 3 {
		p := published{hub: hub, topic: "container.created", object: fmt.Sprintf("object-%d", n)}
		if n < 2 {
			lost := fmt.Sprint(strings.Count(listener.Out.String(), "trying again"))
			way.Cut()
			listener.Line(t, "that the line was lost", func(string) bool {
				return fmt.Sprint(strings.Count(listener.Out.String(), "trying again")) != lost
			})
		}
		publishers["curl"](t, d, p)
		listener.Line(t, "the event", func(l string) bool { return strings.Contains(l, p.object) })
		want = append(want, p.object)
	}
	var got []string
	for line := range strings.Lines(listener.Out.String()) {
		for _, object := range want {
			if strings.Contains(line, object) {
				got = append(got, object)
			}
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("received %q, want %q", got, want)
	}
}

// The server of the page forwards the responses of the relay that the page needs, and hides others.
func TestPageServerPassesOn(t *testing.T) {
	var status atomic.Int64
	relay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		refuse(w, int(status.Load()), "")
	}))
	defer relay.Close()
	port := redistest.FreePort(t)
	server := start(t, []string{"HUBRELAY_URL=" + relay.URL, "PORT=" + port}, "node", "listen-browser/server.mjs")
	server.Line(t, "its address", func(l string) bool { return strings.HasPrefix(l, "open http") })
	for from, want := range map[int]int{401: 401, 429: 429, 503: 503, 500: 502, 403: 502} {
		status.Store(int64(from))
		answer, err := http.Get("http://127.0.0.1:" + port + "/stream-address")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		passed := want == from
		if err != nil || answer.StatusCode != want || (answer.Header.Get("Retry-After") == "7") != passed ||
			strings.Contains(string(text), "test") != passed {
			t.Errorf("%d became %d, Retry-After %q: %s (%v)", from, answer.StatusCode, answer.Header.Get("Retry-After"),
				text, err)
		}
	}
}

// testMisspeltPattern checks that each listener fails with a helpful error.
func testMisspeltPattern(t *testing.T, d *daemon) {
	for _, command := range [][]string{
		{"./listen-events.sh"}, {pythonWith(t, "websockets"), "listen-python/listen.py"}, {
			"node",
			"listen-node/listen.mjs",
		},
	} {
		p := start(t, d.env("hub-1"), command[0], append(command[1:], "contaner.*")...)
		if code := p.Exit(t); code == 0 || !strings.Contains(p.Out.String(), "the nearest topic is container.created") {
			t.Errorf("%v ended with %d: %s", command, code, p.Out)
		}
	}
}
