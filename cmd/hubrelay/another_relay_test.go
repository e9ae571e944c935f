package main_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// A command with the configuration file of one relay never controls another one, even if that has the socket.
func TestCommands_RejectAnotherRelay(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	write := func(name, prefix string) string {
		t.Helper()
		return writeFile(t, dir, name, daemonConfig{
			redis: fmt.Sprintf(`data_dir: data, prefix: %s`, prefix), sinks: webhookSink("hook", "http://127.0.0.1:9/", ""),
		}.renderYAML())
	}
	running, other := write("running.yaml", "one"), write("other.yaml", "two")
	elsewhere := t.TempDir()
	d := serveIn(t, elsewhere, running)

	out, errOut, code := callIn(t, elsewhere, nil, "", "sinks", "pause", "hook", "-c", other)
	if code != 1 || !strings.Contains(errOut, "belongs to another relay than "+other+", and nothing was done") {
		t.Errorf("the command for another relay ended with %d:\n%s%s", code, out, errOut)
	}
	if want := filepath.Join(dir, "data", "admin.sock"); d.Admin != want {
		t.Errorf("the socket is %s, want %s", d.Admin, want)
	}
	out, errOut, code = callIn(t, t.TempDir(), nil, "", "sinks", "list", "-c", running, "--json")
	if code != 0 || strings.Contains(out, `"paused":true`) {
		t.Errorf("sinks list ended with %d:\n%s%s", code, out, errOut)
	}
}
