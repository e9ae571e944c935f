package main_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/gorilla/websocket"
)

// TestStop ends a daemon that has its hands full.
func TestStop(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	started, answer := make(chan struct{}), make(chan struct{})
	begin := sync.OnceFunc(func() { close(started) })
	hooks := receive(t, func(w http.ResponseWriter, _ hook) {
		begin()
		<-answer
		w.WriteHeader(http.StatusNoContent)
	})
	release := sync.OnceFunc(func() { close(answer) })
	t.Cleanup(release)
	text := setup{
		redis: fmt.Sprintf("data_dir: %q", filepath.Join(dir, "data")),
		sinks: webhookSink("hook", hooks.url+"/", ", concurrency: 2"),
	}
	file := write(t, dir, "hubrelay.yaml", text.yaml())
	d := serveFile(t, file)
	ws := d.connect(t, opsKey, "hub-1", "")
	ids := d.publish(t, "hub-1", "application/x-ndjson", lines(6), nil)
	<-started
	d.signal(syscall.SIGTERM)
	if closed := ws.closed(t, websocket.CloseServiceRestart); closed.Text == "" {
		t.Error("the websocket was closed without a reason")
	}
	if got := objectIDs(ws.wait(t, len(ids))); !slices.Equal(got, ids) {
		t.Errorf("the websocket got %v, want %v", got, ids)
	}
	release() // within the grace: what was begun is finished
	if code := d.exit(t); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	d = serveFile(t, file)
	eventually(t, "the rest", hooks.took("/", ids))
	for id, n := range hooks.counts() {
		if n != 1 {
			t.Errorf("%s came %d times", id, n)
		}
	}
	d.stop(t)
}

// TestKeyFileChanges gives a key another secret while the daemon runs.
func TestKeyFileChanges(t *testing.T) {
	t.Parallel()
	const first, second = "first-key-0123456789abcdef", "second-key-0123456789abcdef"
	dir := folder(t)
	write(t, dir, "key", first+"\n")
	d := serveFile(t, write(t, dir, "hubrelay.yaml", setup{redis: `url: "memory:"`, keys: `
    - {name: file, key_file: key, hubs: ["*"]}`}.yaml()))
	token := d.token(t, first, "hub-1")
	if err := os.Rename(write(t, dir, "key.new", second+"\n"), filepath.Join(dir, "key")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new key to work", func() error {
		if r := d.do(t, request{method: "GET", key: second, hub: "hub-1"}); r.status != http.StatusOK {
			return fmt.Errorf("answered %d", r.status)
		}
		return nil
	})
	wantError(t, d.do(t, request{method: "GET", key: first, hub: "hub-1"}), "401.auth-invalid", "", "")
	_, refused := d.upgrade(t, "?token="+token, nil)
	wantError(t, refused, "401.auth-invalid", "", "no longer exists")
	d.token(t, opsKey, "hub-1")
}
