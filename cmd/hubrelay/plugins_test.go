package main_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// A builtin plugin works. A missing plugin is reported as failed, keeps its backlog, and receives it when it exists.
// Other sinks are not affected.
func TestPluginSinks(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	dir := tempDir(t)
	file := writeFile(t, dir, "hubrelay.yaml", daemonConfig{
		redis: fmt.Sprintf("url: %q", server.URL()),
		sinks: `  shown: {type: plugin, command: ["builtin:print"], config: {data: true},
    env: ["GORACE=atexit_sleep_ms=0"]}
  later: {type: plugin, command: [./later, builtin-plugin], args: [print], env: [GORACE],
    retry: {schedule: [100ms, 200ms, 200ms, 200ms], max_attempts: 100}}
`,
	}.renderYAML())
	d := serveFile(t, file)
	ids := d.Publish(t, "hub-1", "application/x-ndjson",
		`{"topic":"container.created","object":{"id":"web-1"},"context":{"account_id":"acme"}}`, nil)

	testkit.Eventually(t, "the event in the log", func() error {
		for line := range strings.Lines(d.Err.String()) {
			if strings.Contains(line, `"msg":"notification"`) && strings.Contains(line, `"sink":"shown"`) &&
				strings.Contains(line, ids[0]) && strings.Contains(line, "web-1") {
				return nil
			}
		}
		return errors.New("it is not there")
	})
	listed := func(want ...string) func() error {
		return func() error {
			out, errOut, code := call(t, nil, "", "sinks", "list", "--admin", d.Admin)
			for _, part := range want {
				if code != 0 || !strings.Contains(out, part) {
					return fmt.Errorf("%q is not in:\n%s%s", part, out, errOut)
				}
			}
			return nil
		}
	}
	testkit.Eventually(t, "the failed sink to be shown", listed("failed", "does not exist: build it"))
	testkit.Eventually(t, "its figures", func() error {
		text := d.Metrics(t)
		for _, part := range []string{
			`hubrelay_sink_state{sink="later",state="failed"} 1`, `hubrelay_sink_state{sink="shown",state="failed"} 0`,
			`hubrelay_sink_plugin_events_total{event="started",sink="shown"} 1`,
			`hubrelay_sink_plugin_events_total{event="not_started",sink="later"}`,
		} {
			if !strings.Contains(text, part) {
				return fmt.Errorf("%s is not there", part)
			}
		}
		return nil
	})
	if err := os.Symlink(binary(t), filepath.Join(dir, "later")); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "what the failed sink kept", func() error {
		if n := strings.Count(d.Err.String(), `"msg":"notification"`); n < 2 {
			return fmt.Errorf("%d events were shown", n)
		}
		return nil
	})
	testkit.Eventually(t, "the sink to be well", func() error {
		if err := listed("failed")(); err == nil {
			return errors.New("it is still shown as failed")
		}
		return nil
	})
}

// Deliveries that a killed plugin had not acknowledged are repeated.
func TestPluginKilled(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	d := serve(t, daemonConfig{
		redis: fmt.Sprintf("url: %q", server.URL()),
		sinks: `  shown: {type: plugin, command: ["builtin:print"], env: ["GORACE=atexit_sleep_ms=0"],
    retry: {schedule: [100ms, 100ms, 200ms], max_attempts: 100}}`,
	})
	var ids []string
	for round := range 4 {
		var pid int
		testkit.Eventually(t, "the plugin to run", func() (err error) {
			pid, err = d.plugin("shown", round+1)
			return err
		})
		one := `{"topic":"container.created","object":{"id":"web-1"},"context":{"account_id":"acme"}}` + "\n"
		ids = append(ids, d.Publish(t, "hub-1", "application/x-ndjson", strings.Repeat(one, 50), nil)...)
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "all events", func() error {
		log := d.Err.String()
		return missing(ids, func(id string) bool {
			return strings.Contains(log, `"msg":"notification","sink":"shown","hub":"hub-1","id":"`+id)
		})
	})
	if text := d.Err.String(); !strings.Contains(text, "the plugin exited by signal 9 (killed)") {
		t.Error("the log does not say that the plugin was killed")
	}
}

// A plugin that crashes repeatedly disables its sink, which keeps its backlog and reports it. Other sinks continue.
func TestPluginCrashLoop(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	d := serve(t, daemonConfig{
		redis: fmt.Sprintf("url: %q", server.URL()),
		sinks: `  loop: {type: plugin, command: ["/bin/sh", "-c", "echo no database >&2; exit 3"], max_crashes: 2}
  shown: {type: plugin, command: ["builtin:print"], env: ["GORACE=atexit_sleep_ms=0"]}`,
	})
	ids := d.Publish(t, "hub-1", "application/x-ndjson",
		strings.Repeat(`{"topic":"container.created","object":{"id":"web-1"},"context":{"account_id":"acme"}}`+"\n",
			5), nil)
	testkit.Eventually(t, "the sink to be disabled", func() error {
		out, errOut, code := call(t, nil, "", "sinks", "list", "--json", "--admin", d.Admin)
		for line := range strings.Lines(out) {
			if code == 0 && strings.Contains(line, `"loop"`) && strings.Contains(line, `"state":"disabled"`) &&
				strings.Contains(line, "crashed too often") && strings.Contains(line, "no database") {
				return nil
			}
		}
		return errors.New(out + errOut)
	})
	testkit.Eventually(t, "the other sink to continue", func() error {
		return missing(ids, func(id string) bool {
			return strings.Contains(d.Err.String(), `"sink":"shown","hub":"hub-1","id":"`+id)
		})
	})
	letters, errOut, code := call(t, nil, "", "deadletters", "list", "--json", "--admin", d.Admin, "loop")
	if code != 0 || strings.TrimSpace(letters) != "" {
		t.Errorf("dead letters: %s%s", letters, errOut)
	}
}

// plugin returns the process ID of the nth start of the plugin of a sink.
func (d *daemon) plugin(sink string, n int) (pid int, err error) {
	parts := strings.Split(d.Err.String(), `"msg":"plugin started","sink":"`+sink+`","pid":`)
	if len(parts) <= n {
		return 0, fmt.Errorf("it was started %d times", len(parts)-1)
	}
	_, err = fmt.Sscan(strings.ReplaceAll(parts[n], ",", " "), &pid)
	return pid, err
}

// A node whose plugins do not start again leaves what it has read, and the ordered sink that it leads, to another node. It delivers
// again when its plugins run.
func TestLongPluginFailsOnOneNode(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	sinks := []string{"ordered", "shown"}
	start := func() (d *daemon, command string) {
		t.Helper()
		dir := tempDir(t)
		command = filepath.Join(dir, "plugin")
		if err := os.Symlink(binary(t), command); err != nil {
			t.Fatal(err)
		}
		d = serveFile(t, writeFile(t, dir, "hubrelay.yaml", daemonConfig{
			redis: fmt.Sprintf("url: %q", server.URL()),
			sinks: `  shown: {type: plugin, command: [./plugin, builtin-plugin], args: [print], env: [GORACE], max_crashes: 6}
  ordered: {type: plugin, command: [./plugin, builtin-plugin], args: [print], env: [GORACE], ordering: hub}
`,
		}.renderYAML()))
		for _, sink := range sinks {
			testkit.Eventually(t, "the plugin to run", func() error {
				_, err := d.plugin(sink, 1)
				return err
			})
		}
		return d, command
	}
	publish := func(d *daemon, events int) []string {
		return d.Publish(t, "hub-1", "application/x-ndjson", strings.Repeat(
			`{"topic":"container.created","object":{"id":"web-1"},"context":{"account_id":"acme"}}`+"\n", events), nil)
	}
	expectDelivered := func(ids []string, nodes ...*daemon) {
		t.Helper()
		for _, sink := range sinks {
			testkit.Eventually(t, "the events of sink "+sink, func() error {
				var logs strings.Builder
				for _, node := range nodes {
					logs.WriteString(node.Err.String())
				}
				return missing(ids, func(id string) bool {
					return strings.Contains(logs.String(), `"msg":"notification","sink":"`+sink+`","hub":"hub-1","id":"`+id)
				})
			})
		}
	}
	failing, command := start()
	testkit.Eventually(t, "the node to lead", failing.Err.Contains("node became the leader of an ordered sink"))
	working, _ := start()
	replaceCommand := func(how func() error) {
		t.Helper()
		if err := errors.Join(os.Remove(command), how()); err != nil {
			t.Fatal(err)
		}
	}
	replaceCommand(func() error { return os.WriteFile(command, []byte("#!/bin/sh\nexit 3\n"), 0o700) })
	for _, sink := range sinks {
		pid, err := failing.plugin(sink, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	// No event is published, so the other node has no success.
	testkit.Eventually(t, "more crashes than max_crashes", func() error {
		if n := strings.Count(failing.Err.String(), "exited with status 3 before it was ready"); n < 7*len(sinks) {
			return fmt.Errorf("the plugins have exited %d times", n)
		}
		return nil
	})
	expectDelivered(publish(working, 20), working)
	expectFailedOn := func(want bool) {
		t.Helper()
		for _, command := range []string{"list", "show ordered"} {
			testkit.Eventually(t, "the other node to show where the sink has failed", func() error {
				args := append([]string{"sinks"}, strings.Fields(command)...)
				out, _, _ := call(t, []string{"HUBRELAY_ADMIN=" + working.Admin}, "", args...)
				if strings.Contains(out, "failed on node-") != want {
					return fmt.Errorf("sinks %s: %s", command, out)
				}
				return nil
			})
		}
	}
	expectFailedOn(true)
	if strings.Contains(failing.Err.String(), "crashed too often") {
		t.Error("a plugin was given up although the other node delivers")
	}
	replaceCommand(func() error { return os.Symlink(binary(t), command) })
	testkit.Eventually(t, "the node to deliver again", func() error {
		if n := strings.Count(failing.Err.String(), "node takes deliveries of the sink again"); n != len(sinks) {
			return fmt.Errorf("%d of %d sinks do", n, len(sinks))
		}
		return nil
	})
	expectDelivered(publish(failing, 50), failing, working)
	expectFailedOn(false)
}

// Plugins end when their daemon is killed.
func TestPluginsEndWithTheDaemon(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, how := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		d := serve(t, daemonConfig{
			redis: fmt.Sprintf("url: %q", server.URL()),
			sinks: `  shown: {type: plugin, command: ["builtin:print"]}`,
		})
		var pid int
		testkit.Eventually(t, "the plugin to run", func() (err error) {
			pid, err = d.plugin("shown", 1)
			return err
		})
		d.Signal(how)
		d.Exit(t)
		testkit.Eventually(t, "the plugin to end", func() error {
			if !hasEnded(pid) {
				return fmt.Errorf("%d lives after %s", pid, how)
			}
			return nil
		})
	}
}

// Builtin plugins pass the checks. Another program does not.
func TestPluginsCheck(t *testing.T) {
	t.Parallel()
	for _, plugin := range []string{"builtin:print", "builtin:directory"} {
		out, errOut, code := call(t, nil, "", "plugins", "check", "--timeout", "2m", "--env",
			"GORACE=atexit_sleep_ms=0", plugin)
		if code != 0 || strings.Contains(out, "failed") || strings.Contains(out, "advice") ||
			strings.Count(out, "ok ") != 10 {
			t.Errorf("%s: %d:\n%s%s", plugin, code, out, errOut)
		}
	}
	out, errOut, code := call(t, nil, "", "plugins", "check", "--json", "sleep", "60", "--timeout")
	if code != 1 || !strings.Contains(out, `"result":"failed"`) ||
		!strings.Contains(errOut, "the plugin failed the checks of a sink") {
		t.Errorf("%d:\n%s%s", code, out, errOut)
	}
	if _, errOut, code = call(t, nil, "", "plugins", "check", "--config", "7", "x"); code != 2 ||
		!strings.Contains(errOut, "--config is not a JSON object") {
		t.Errorf("%d: %s", code, errOut)
	}
	if _, errOut, code = call(t, nil, "", "plugins", "check", "--kind", "source", "x"); code != 2 ||
		!strings.Contains(errOut, "choose sink or driver") {
		t.Errorf("%d: %s", code, errOut)
	}
	out, errOut, code = call(t, nil, "", "plugins", "check", "--timeout", "2m", "--kind", "driver", "--env",
		"GORACE=atexit_sleep_ms=0", "builtin:print")
	if code != 1 || !strings.Contains(out, "of the kind sink, and was started as a driver") ||
		!strings.Contains(errOut, "of a driver; --verbose") {
		t.Errorf("%d:\n%s%s", code, out, errOut)
	}
	if strings.Contains(out, "crashed too often") {
		t.Errorf("it speaks of a daemon:\n%s", out)
	}
	if _, errOut, code = call(t, nil, "", "plugins", "check"); code != 2 {
		t.Errorf("%d: %s", code, errOut)
	}
}

// Errors name flags instead of settings, and do not mention the daemon.
func TestPluginsCheckNamesFlags(t *testing.T) {
	t.Parallel()
	for flag, command := range map[string][]string{
		"--config": {"--timeout", "2m", "--config", `{"typo":1}`, "builtin:print"},
		"--no-tls": {"--timeout", "20s", "sh", "-c", `echo "1|1|unix|$PLUGIN_UNIX_SOCKET_DIR/x|grpc"; exec sleep 60`},
	} {
		out, errOut, code := call(t, nil, "", append([]string{"plugins", "check", "--kind", "sink"}, command...)...)
		if code != 1 || !strings.Contains(out, "(here: "+flag+")") || strings.Contains(out, "next start") {
			t.Errorf("%v: %d:\n%s%s", command, code, out, errOut)
		}
	}
}
