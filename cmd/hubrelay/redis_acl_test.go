package main_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// The published ACL is sufficient for a relay with sinks, retries, dead letters, quotas, streams, keys, an inbox and an
// audit log, and allows nothing outside its keys.
func TestRedisACL(t *testing.T) {
	t.Parallel()
	acl, err := os.ReadFile(filepath.Join("..", "..", "configs", "redis-acl.conf"))
	if err != nil {
		t.Fatal(err)
	}
	var rules []any
	for line := range strings.Lines(string(acl)) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] == "user" {
			for _, rule := range fields[1:] {
				rules = append(rules, rule)
			}
		}
	}
	port := redistest.FreePort(t)
	server := redistest.Start(t, "--port", port, "--bind", "127.0.0.1")
	admin := redisAt(t, server.Socket)
	if err := admin.Do(t.Context(), append([]any{"ACL", "SETUSER"}, rules...)...).Err(); err != nil {
		t.Fatal(err)
	}
	hooks := receive(t, func(w http.ResponseWriter, h hook) {
		switch {
		case h.path == "/dead":
			w.WriteHeader(http.StatusUnprocessableEntity)
		case h.attempt == 1:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	})
	d := serve(t, daemonConfig{
		redis: fmt.Sprintf("url: \"redis://hubrelay:PASSWORD@127.0.0.1:%s/0\"", port),
		sinks: webhookSink("hook", hooks.url+"/hook", ", rate: 1000/s") +
			webhookSink("ordered", hooks.url+"/ordered", ", ordering: hub") +
			webhookSink("batches", hooks.url+"/batches", ", batch: {wait: 10ms}") +
			webhookSink("dead", hooks.url+"/dead", ""),
	})
	testkit.Eventually(t, "the daemon to be ready", d.Ready(http.StatusOK))
	stream := d.connect(t, opsKey, "hub-1", "&cursor=true")
	ids := d.Publish(t, "hub-1", "application/x-ndjson", lines(5), map[string]string{"Idempotency-Key": "k"})
	stream.wait(t, len(ids))
	for _, path := range []string{"/hook", "/ordered"} {
		testkit.Eventually(t, path, hooks.acceptedAll(path, ids))
	}
	if err := admin.Do(t.Context(), "XADD", "hubrelay:inbox", "*", "data", "invalid").Err(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the quarantine", func() error {
		if admin.XLen(t.Context(), "hubrelay:quarantine").Val() == 0 {
			return errors.New("it is empty")
		}
		return nil
	})
	testkit.Eventually(t, "the dead letters", func() error {
		if n := admin.XLen(t.Context(), "hubrelay:deadletters:dead").Val(); n != int64(len(ids)) {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	for _, args := range []string{
		"sinks list", "sinks pause hook", "sinks resume hook", "sinks replay hook --after 1h", "deadletters list dead",
		"deadletters replay dead --all", "audit", "keys create app --account a1 --hub hub-1", "keys list",
	} {
		if _, errOut, code := call(t, nil, "", append(strings.Fields(args), "--admin", d.Admin)...); code == 2 ||
			strings.Contains(errOut, "NOPERM") {
			t.Errorf("%s: got %d %s", args, code, errOut)
		}
	}
	d.Stop(t)
	entries, err := admin.Do(t.Context(), "ACL", "LOG").Slice()
	if err != nil || len(entries) != 0 {
		t.Errorf("Redis rejected %v, %v", entries, err)
	}
	for _, command := range [][]any{
		{"GET", "other"},
		{"FLUSHALL"},
		{"CONFIG", "GET", "*"},
		{"KEYS", "*"},
		{"DEBUG", "SLEEP", "0"},
		{"ACL", "LIST"},
		{"PUBLISH", "other", "x"},
	} {
		err := admin.Do(t.Context(), append([]any{"ACL", "DRYRUN", "hubrelay"}, command...)...)
		if text, _ := err.Text(); !strings.Contains(text, "no permissions") {
			t.Errorf("%v: got %q, want no permissions", command, text)
		}
	}
}
