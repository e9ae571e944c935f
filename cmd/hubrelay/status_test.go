package main_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/cookiejar"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/adminapi"
)

func TestStatus(t *testing.T) {
	t.Parallel()
	d := serve(t, daemonConfig{redis: `url: "memory:"`, sinks: "  written: {type: file, path: ./written.jsonl}"})
	const events = 3
	for range events {
		d.Publish(t, "hub-1", "application/json", plain, nil)
	}
	show := func() (s adminapi.Status) {
		t.Helper()
		out, errOut, code := call(t, nil, "", "status", "-o", "json", "--admin", d.Admin)
		if err := json.Unmarshal([]byte(out), &s); err != nil || code != 0 {
			t.Fatalf("got %d %v: %s%s", code, err, out, errOut)
		}
		return s
	}
	// memory: counts the entries as Redis 7 does, or not at all.
	if s := show(); s.Node != "node-0" || len(s.Nodes) != 1 || s.NotReady != "" || s.Log.Events < events ||
		s.Log.OldestAt.IsZero() || s.StartedAt.IsZero() || s.ConfigWarning != "" {
		t.Errorf("got %+v", s)
	}
	out, errOut, code := call(t, nil, "", "status", "--admin", d.Admin)
	for _, want := range []string{"node-0", "ready", "yes", "storage", "0 clients on node-0"} {
		if !strings.Contains(out, want) || code != 0 {
			t.Errorf("got %d, and %q is missing: %s%s", code, want, out, errOut)
		}
	}
}

// TestConsole_SignIn signs in to a running daemon as a browser does.
func TestConsole_SignIn(t *testing.T) {
	t.Parallel()
	const token = "operator-token-0123456789"
	dir := tempDir(t)
	file := writeFile(t, dir, "hubrelay.yaml", daemonConfig{redis: `url: "memory:"`}.renderYAML()+
		"admin:\n  listen: 127.0.0.1:0\n  tokens: [{name: oncall, role: operator, token: "+token+"}]\n")
	d := serveFile(t, file)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}
	do := func(method, path, body string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+d.Admin+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Origin", "http://"+d.Admin)
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		var text bytes.Buffer
		_, _ = text.ReadFrom(res.Body)
		return res.StatusCode, text.String()
	}
	if status, page := do("GET", "/", ""); status != 200 || !strings.Contains(page, "console.js") {
		t.Errorf("the page: got %d %s", status, page)
	}
	if status, text := do("GET", "/api/status", ""); status != 401 {
		t.Errorf("before the sign-in: got %d %s, want 401", status, text)
	}
	if status, text := do("POST", adminapi.SessionPath, `{"token":"`+token+`"}`); status != 200 ||
		!strings.Contains(text, `"role":"operator"`) || !strings.Contains(text, `"node":"node-0"`) {
		t.Errorf("sign in: got %d %s", status, text)
	}
	if status, text := do("GET", "/api/status", ""); status != 200 {
		t.Errorf("after the sign-in: got %d %s, want 200", status, text)
	}
	if status, text := do("POST", "/api/keys/k/create", "{}"); status != 403 {
		t.Errorf("an operation of admins: got %d %s, want 403", status, text)
	}
	if strings.Contains(d.Err.String(), token) {
		t.Error("the token is in the log")
	}
}
