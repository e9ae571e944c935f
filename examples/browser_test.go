package examples

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// testBrowser opens the page in a headless Chromium with WebDriver and reads its text.
func testBrowser(t *testing.T, d *daemon) {
	p := published{
		hub: "hub-" + rand.Text(), topic: "container.state.changed", state: "<b>running</b>",
		object: rand.Text(),
	}
	server := start(t, append(d.env(p.hub), "PORT="+d.pagePort), "node", "listen-browser/server.mjs")
	server.Line(t, "its address", func(l string) bool { return strings.HasPrefix(l, "open http") })

	b := startBrowser(t)
	b.call(t, "/url", map[string]any{"url": "http://127.0.0.1:" + d.pagePort + "/"})
	b.shows(t, "listening")
	publishers["curl"](t, d, p)
	b.shows(t, p.topic)
	b.shows(t, p.state) // as text, not as markup
}

// browser is a WebDriver session.
type browser struct{ url string }

func startBrowser(t *testing.T) *browser {
	t.Helper()
	// With --port=0, the driver uses a free port of IPv6 and exits if a connection uses the same port of IPv4.
	port := redistest.FreePort(t)
	driver := start(t, nil, "chromedriver", "--port="+port)
	driver.Line(t, "that it started", func(l string) bool { return strings.Contains(l, "successfully on port") })
	profile, err := os.MkdirTemp("", "hubrelay-chromium")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(profile) })
	options := map[string]any{"args": []string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--user-data-dir=" + profile,
	}}
	if path, err := exec.LookPath("chromium"); err == nil {
		options["binary"] = path
	}
	b := &browser{url: "http://127.0.0.1:" + port + "/session"}
	var session struct{ SessionID string }
	b.decode(t, b.call(t, "", map[string]any{
		"capabilities": map[string]any{"alwaysMatch": map[string]any{
			"goog:chromeOptions": options,
			"timeouts":           map[string]any{"script": patience.Milliseconds()},
		}},
	}), &session)
	b.url += "/" + session.SessionID
	// The driver ends its browser when the session is deleted, not when it is killed.
	t.Cleanup(func() {
		req, err := http.NewRequestWithContext(context.Background(), http.MethodDelete, b.url, http.NoBody)
		if err != nil {
			return
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
		}
	})
	return b
}

// shows waits until the visible text of the page contains words.
func (b *browser) shows(t *testing.T, words string) {
	t.Helper()
	testkit.Eventually(t, "the page to show "+words, func() error {
		var text string
		b.decode(t, b.call(t, "/execute/sync", map[string]any{
			"script": "return document.body.innerText",
			"args":   []any{},
		}), &text)
		if !strings.Contains(text, words) {
			return errors.New("it shows: " + text)
		}
		return nil
	})
}

// call sends a WebDriver command and returns the value of the response.
func (b *browser) call(t *testing.T, path string, body any) json.RawMessage {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(b.url+path, "application/json", bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("WebDriver answered %s to %s: %v %s", resp.Status, path, err, answer)
	}
	var wrapped struct{ Value json.RawMessage }
	b.decode(t, answer, &wrapped)
	return wrapped.Value
}

func (b *browser) decode(t *testing.T, data []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
}
