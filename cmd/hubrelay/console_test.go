package main_test

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/cookiejar"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/adminapi"
)

// consoleBrowser is an HTTP client that behaves like a page of the console.
type consoleBrowser struct {
	t      *testing.T
	base   string
	client *http.Client
}

func newConsoleBrowser(t *testing.T, base string) *consoleBrowser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &consoleBrowser{t, base, &http.Client{Jar: jar, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if _, port, ok := strings.Cut(addr, ".localhost:"); ok { // browsers resolve it themselves
				addr = "127.0.0.1:" + port
			}
			var d net.Dialer
			return d.DialContext(ctx, network, addr)
		},
	}}}
}

func (b *consoleBrowser) do(method, path, body string) (status int, text string) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.base+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	r.Header.Set("Origin", b.base)
	return b.send(r)
}

func (b *consoleBrowser) send(r *http.Request) (status int, text string) {
	b.t.Helper()
	res, err := b.client.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var content bytes.Buffer
	_, _ = content.ReadFrom(res.Body)
	return res.StatusCode, content.String()
}

// expect calls path and checks the status and a part of the body.
func (b *consoleBrowser) expect(status int, part, method, path, body string) {
	b.t.Helper()
	if got, text := b.do(method, path, body); got != status || !strings.Contains(text, part) {
		b.t.Errorf("%s %s: got %d %.300s, want %d with %q", method, path, got, text, status, part)
	}
}

func TestConsole_SignIn(t *testing.T) {
	t.Parallel()
	const token = "operator-token-0123456789"
	file := writeFile(t, tempDir(t), "hubrelay.yaml", daemonConfig{redis: `url: "memory:"`}.renderYAML()+
		"admin:\n  listen: 127.0.0.1:0\n  tokens: [{name: oncall, role: operator, token: "+token+"}]\n")
	d := serveFile(t, file)
	b := newConsoleBrowser(t, "http://"+d.Admin)
	b.expect(200, "console.js", "GET", "/", "")
	b.expect(401, "401.auth-invalid", "GET", "/api/status", "")
	b.expect(200, `"role":"operator"`, "POST", adminapi.SessionPath, `{"token":"`+token+`"}`)
	b.expect(200, `"node":"node-0"`, "GET", "/api/status", "")
	b.expect(403, "requires the role admin", "POST", "/api/keys/k/create", "{}")
	b.expect(204, "", "DELETE", adminapi.SessionPath, "")
	b.expect(401, "401.auth-invalid", "GET", "/api/status", "")
	if strings.Contains(d.Err.String(), token) {
		t.Error("the token is in the log")
	}
}

// TestConsole_Command opens the console through the socket and through a TCP listener with a token.
func TestConsole_Command(t *testing.T) {
	t.Parallel()
	const token = "viewer-token-0123456789"
	for name, tt := range map[string]struct{ admin, role string }{
		"socket": {"", "admin"},
		"token":  {"admin:\n  listen: 127.0.0.1:0\n  tokens: [{name: desk, role: viewer, token: " + token + "}]\n", "viewer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := serveFile(t, writeFile(t, tempDir(t), "hubrelay.yaml", daemonConfig{
				redis: `url: "memory:"`, sinks: "  written: {type: file, path: ./written.jsonl}",
			}.renderYAML()+tt.admin))
			console := start(t, []string{"HUBRELAY_ADMIN_TOKEN=" + token}, "console", "--no-browser", "--admin", d.Admin)
			link := strings.TrimSpace(console.Line(t, "the link", func(line string) bool { return strings.Contains(line, "/?code=") }))
			base, _, _ := strings.Cut(link, "/?")
			stranger, b := newConsoleBrowser(t, base), newConsoleBrowser(t, base)
			stranger.expect(401, "run 'hubrelay console' again", "GET", "/api/sinks", "")
			b.expect(200, "Open the console", "GET", strings.TrimPrefix(link, base), "")
			b.expect(200, "console.js", "GET", "/", "")
			stranger.expect(401, "used before", "GET", strings.TrimPrefix(link, base), "")
			b.expect(200, `"role":"`+tt.role+`"`, "GET", adminapi.SessionPath, "")
			b.expect(200, `"can_sign_out":false`, "GET", adminapi.SessionPath, "")
			if tt.role == "admin" {
				b.expect(200, `"state":"paused"`, "POST", "/api/sinks/written/pause", "")
			} else {
				b.expect(403, "requires the role operator", "POST", "/api/sinks/written/pause", "")
			}
			d.Kill()
			b.expect(503, "503.not-ready", "GET", "/api/sinks", "")
			console.Stop(t)
			if strings.Contains(console.Out.String(), token) {
				t.Error("the token is in the output")
			}
		})
	}
}
