package main_test

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestReload_LogsChanges reloads repeatedly. A warning is logged once, and changes are logged by name, including
// keys.
func TestReload_LogsChanges(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	open := func(name, text string) {
		t.Helper()
		if err := os.Chmod(writeFile(t, dir, name, text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	open("one", "one-key-0123456789abcdef")
	open("two", "two-key-0123456789abcdef")
	s := daemonConfig{redis: `url: "memory:"`, keys: "    - {name: one, key_file: one, hubs: [hub-1]}\n"}
	file := writeFile(t, dir, "hubrelay.yaml", s.renderYAML())
	d := serveFile(t, file)
	for _, noise := range []string{"overcommit", "migration.driver"} {
		if strings.Contains(d.Err.String(), noise) {
			t.Errorf("the start logs %s:\n%s", noise, d.Err.String())
		}
	}
	if text := d.Err.String(); !strings.Contains(text, `"sink_count":0,"key_count":3`) {
		t.Errorf("the start does not log the addresses:\n%s", text)
	}
	warned := func(name string, want int) {
		t.Helper()
		if n := strings.Count(d.Err.String(), "/"+name+" can be read by every user"); n != want {
			t.Errorf("warned %d times of %s, want %d:\n%s", n, name, want, d.Err.String())
		}
	}
	warned("one", 1)
	d.Signal(syscall.SIGHUP)
	d.waitForReload(t, 1)
	if text := d.Err.String(); !strings.Contains(text, `"sinks_kept":0,"keys_kept":3`) ||
		strings.Contains(text, "_added") {
		t.Errorf("nothing has changed, and told is\n%s", text)
	}
	before := s.keys
	s.keys = "    - {name: two, key_file: two, hubs: [hub-2]}\n" + before
	d.reconfigure(t, file, s, 2)
	s.keys = strings.Replace(before, "hub-1", "hub-2", 1)
	d.reconfigure(t, file, s, 3)
	testkit.Eventually(t, "the last words", d.Err.Contains(`"keys_removed":["two"]`))
	for _, part := range []string{`"keys_added":["two"]`, `"keys_changed":["one"]`} {
		if !strings.Contains(d.Err.String(), part) {
			t.Errorf("no %s in\n%s", part, d.Err.String())
		}
	}
	warned("one", 1)
	warned("two", 1)
}
