package main_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestStop stops a daemon with many deliveries in progress.
func TestStop(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	started, answer := make(chan struct{}), make(chan struct{})
	begin := sync.OnceFunc(func() { close(started) })
	hooks := receive(t, func(w http.ResponseWriter, _ hook) {
		begin()
		<-answer
		w.WriteHeader(http.StatusNoContent)
	})
	release := sync.OnceFunc(func() { close(answer) })
	t.Cleanup(release)
	text := daemonConfig{
		redis: fmt.Sprintf("data_dir: %q", filepath.Join(dir, "data")),
		sinks: webhookSink("hook", hooks.url+"/", ", concurrency: 2, timeout: 2m"),
	}
	file := writeFile(t, dir, "hubrelay.yaml", text.renderYAML())
	d := serveFile(t, file, longGrace)
	ws := d.connect(t, opsKey, "hub-1", "")
	ids := d.Publish(t, "hub-1", "application/x-ndjson", lines(6), nil)
	<-started
	d.Signal(syscall.SIGTERM)
	if closed := ws.closed(t, websocket.CloseServiceRestart); closed.Text == "" {
		t.Error("the websocket was closed without a reason")
	}
	if got := objectIDs(ws.wait(t, len(ids))); !slices.Equal(got, ids) {
		t.Errorf("the websocket got %v, want %v", got, ids)
	}
	testkit.Eventually(t, "readyz to say no", d.Ready(http.StatusServiceUnavailable))
	release() // attempts in progress finish within the grace period
	if code := d.Exit(t); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	d = serveFile(t, file)
	testkit.Eventually(t, "the rest", hooks.acceptedAll("/", ids))
	for id, n := range hooks.counts() {
		if n != 1 {
			t.Errorf("%s came %d times", id, n)
		}
	}
	d.Stop(t)
}

// TestKeyFileChanges changes the secret of a key while the daemon runs.
func TestKeyFileChanges(t *testing.T) {
	t.Parallel()
	const first, second = "first-key-0123456789abcdef", "second-key-0123456789abcdef"
	dir := tempDir(t)
	writeFile(t, dir, "key", first+"\n")
	d := serveFile(t, writeFile(t, dir, "hubrelay.yaml", daemonConfig{redis: `url: "memory:"`, keys: `
    - {name: file, key_file: key, hubs: ["*"]}`}.renderYAML()), "HUBRELAY_WEBSOCKET__PING_INTERVAL=1h")
	hub, account, other := d.connect(t, first, "hub-1", ""), d.connect(t, first, "", ""), d.connect(t, opsKey, "hub-1",
		"")
	token := d.Token(t, first, "hub-1")
	if err := os.Rename(writeFile(t, dir, "key.new", second+"\n"), filepath.Join(dir, "key")); err != nil {
		t.Fatal(err)
	}
	for _, ws := range []*socket{hub, account} {
		if closed := ws.closed(t, websocket.ClosePolicyViolation); closed.Text == "" {
			t.Error("the websocket was closed without a reason")
		}
	}
	testkit.Eventually(t, "the new key to work", func() error {
		if r := d.Do(t, testkit.Request{Method: "GET", Key: second, Hub: "hub-1"}); r.Status != http.StatusOK {
			return fmt.Errorf("answered %d", r.Status)
		}
		return nil
	})
	wantError(t, d.Do(t, testkit.Request{Method: "GET", Key: first, Hub: "hub-1"}), "401.auth-invalid", "", "")
	_, refused := d.upgrade(t, "?token="+token, nil)
	wantError(t, refused, "401.auth-invalid", "", "no longer exists")
	d.Publish(t, "hub-1", "application/json", plain, nil)
	other.wait(t, 1)
}

// TestStartsBeforeRedis starts a daemon before its Redis, and one whose Redis requires a password.
func TestStartsBeforeRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Kill()
	dir := tempDir(t)
	file := writeFile(t, dir, "hubrelay.yaml", daemonConfig{redis: fmt.Sprintf("url: %q", server.URL())}.renderYAML())
	early := start(t, nil, "serve", "-c", file)
	d := newDaemon(start(t, nil, "serve", "-c", file))
	for _, p := range []*testkit.Process{early, d.Process} {
		testkit.Eventually(t, "the daemon to wait for Redis", p.Err.Contains("waiting for redis"))
	}
	early.Signal(syscall.SIGTERM)
	if code := early.Exit(t); code != 0 {
		t.Errorf("a daemon that waits for Redis ended with %d after SIGTERM", code)
	}
	server.Restart()
	d.Await(t)
	ws := d.connect(t, opsKey, "hub-1", "")
	d.Publish(t, "hub-1", "application/json", plain, nil)
	ws.wait(t, 1)
	d.Stop(t)

	if err := redisAt(t, server.Socket).ConfigSet(t.Context(), "requirepass", "secret").Err(); err != nil {
		t.Fatal(err)
	}
	if _, errOut, code := call(t, nil, "", "serve", "-c", file); code != 1 || !strings.Contains(errOut, "redis") ||
		!strings.Contains(errOut, "uthentication") {
		t.Errorf("without the password it ended with %d:\n%s", code, errOut)
	}
}

// TestPortTaken checks that no redis-server remains if the daemon cannot listen.
func TestPortTaken(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	dir := tempDir(t)
	data := filepath.Join(dir, "data")
	for _, key := range []string{"server", "health"} {
		text := daemonConfig{redis: fmt.Sprintf("data_dir: %q", data)}.renderYAML()
		text = strings.Replace(text, key+`: {listen: "127.0.0.1:0"`, key+`: {listen: "`+taken.Addr().String()+`"`, 1)
		_, errOut, code := call(t, nil, "", "serve", "-c", writeFile(t, dir, "hubrelay.yaml", text))
		if code != 1 || !strings.Contains(errOut, key+".listen") || !strings.Contains(errOut, taken.Addr().String()) {
			t.Errorf("it ended with %d:\n%s", code, errOut)
		}
		if pid := redisPID(data); pid != 0 && !hasEnded(pid) {
			t.Errorf("redis-server %d remains", pid)
		}
	}
}
