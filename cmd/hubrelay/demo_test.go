package main_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

func startDemo(t *testing.T, home, listen string, env ...string) *testkit.Process {
	t.Helper()
	t.Cleanup(func() { killAgents(t, home) }) // if the test failed; runs after the demo has ended
	env = append(env, "XDG_CACHE_HOME="+home, "HOME="+home)
	p := start(t, env, "demo", "--every", "50ms", "--listen", listen, "--health", listen)
	testkit.Eventually(t, "an event at both ends", func() error { return atBothEnds(p.Out.String()) })
	return p
}

// demoRedis returns the process id of the redis-server of a demo.
func demoRedis(t *testing.T, dir string) int {
	t.Helper()
	// Stop the redis-server even if the test failed early.
	t.Cleanup(func() {
		if pid := redisPID(filepath.Join(dir, "data")); pid > 0 && !hasEnded(pid) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	pid := redisPID(filepath.Join(dir, "data"))
	if pid == 0 || hasEnded(pid) {
		t.Fatalf("the redis-server of the demo in %s is %d", dir, pid)
	}
	return pid
}

// endDemo ends a demo with a signal and checks that it cleans up.
func endDemo(t *testing.T, p *testkit.Process, dir string, pid int, by syscall.Signal) {
	t.Helper()
	p.Signal(by)
	if code := p.Exit(t); code != 0 {
		t.Errorf("it ended with %d after %v", code, by)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the demo's folder is left: %v", err)
	}
	if !hasEnded(pid) {
		t.Errorf("its redis-server, process %d, is left", pid)
	}
	waitUntilCleanedUp(t, dir)
	if strings.Contains(p.Out.String()+p.Err.String(), "\x1b") {
		t.Error("the output has escape codes without a terminal")
	}
	if text := p.Err.String(); text != "" {
		t.Errorf("it complained:\n%s", text)
	}
}

// processesIn lists the processes that name a directory or work in it.
func processesIn(t *testing.T, dir string) []string {
	t.Helper()
	var list []string
	for pid, args := range processes(t) {
		cwd, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)) // the process has ended
		if strings.Contains(args, dir+"/") || strings.HasPrefix(cwd, dir+"/") {
			list = append(list, fmt.Sprintf("%d %s", pid, args))
		}
	}
	return list
}

// waitUntilCleanedUp waits until the directory is removed. An agent releases its lock shortly before it ends.
func waitUntilCleanedUp(t *testing.T, dir string) {
	t.Helper()
	testkit.Eventually(t, "nothing to be left", func() error {
		if left := processesIn(t, dir); len(left) > 0 {
			return fmt.Errorf("there are %v", left)
		}
		return nil
	})
}

// waitForMigration waits until the demo has moved an instance.
func waitForMigration(t *testing.T, p *testkit.Process, dir string) {
	t.Helper()
	testkit.Eventually(t, "the demo to move an instance", p.Out.Contains("completed  worker-1  server-1\n"))
	if err := errors.Join(hasAll(p.Out.String(), "migrate    ▶ worker-1 to server-1\n",
		"running  worker-1  server-3 → server-1  Copy files")...); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "servers", "server-1", "worker-1", "volumes", "data",
		"times.txt")); err != nil {
		t.Error(err)
	}
}

// TestDemo reads the output of the demo, runs the commands that it prints, and starts it again after a kill.
func TestDemo(t *testing.T) {
	t.Parallel()
	home := tempDir(t)
	dir := filepath.Join(home, fmt.Sprintf("hubrelay-demo-%d", os.Getuid()))
	killed := startDemo(t, home, "127.0.0.1:0")
	pid := demoRedis(t, dir)
	runPrintedCommands(t, killed)
	waitForMigration(t, killed, dir)

	beside := startDemo(t, home, "127.0.0.1:0")
	besidePID := demoRedis(t, dir+"-2")
	if besidePID == pid {
		t.Error("two demos share a redis-server")
	}
	killed.Kill()
	left := processesIn(t, dir)
	if len(left) < 5 {
		t.Errorf("a demo that is killed leaves its redis-server and its instances, not %v", left)
	}
	again := startDemo(t, home, "127.0.0.1:0")
	testkit.Eventually(t, "the next demo to end what was left", func() error {
		if now := slices.DeleteFunc(processesIn(t, dir),
			func(one string) bool { return !slices.Contains(left, one) }); len(
			now) > 0 {
			return fmt.Errorf("there are %v", now)
		}
		return nil
	})
	endDemo(t, again, dir, demoRedis(t, dir), syscall.SIGINT)
	endDemo(t, beside, dir+"-2", besidePID, syscall.SIGHUP)
}

// TestDemo_OutputIsClosed closes the output of a demo, which ends and cleans up.
func TestDemo_OutputIsClosed(t *testing.T) {
	t.Parallel()
	home := tempDir(t)
	t.Cleanup(func() { killAgents(t, home) })
	shell := exec.Command("sh", "-c", binary(t)+" demo --every 50ms --listen 127.0.0.1:0 --health 127.0.0.1:0 | "+
		"head -n 1")
	shell.Env = append(os.Environ(), "XDG_CACHE_HOME="+home, "HOME="+home)
	if out, err := shell.Output(); err != nil || !strings.HasPrefix(string(out), "hubrelay demo") {
		t.Errorf("%v: %s", err, out)
	}
	waitUntilCleanedUp(t, home)
	if left, _ := filepath.Glob(filepath.Join(home, "hubrelay-demo-*")); len(left) > 0 {
		t.Errorf("there are %v", left)
	}
}

// atBothEnds returns nil if the output shows an event that was published and arrived at the websocket and the
// webhook.
func atBothEnds(out string) error {
	seen := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^[0-9:.]+ (publish|websocket|webhook) +[▶◀] (\S+)`).FindAllStringSubmatch(
		out, -1) {
		if seen[m[2]] += m[1] + " "; strings.Contains(seen[m[2]], "publish") &&
			strings.Contains(seen[m[2]], "websocket") && strings.Contains(seen[m[2]], "webhook") {
			return nil
		}
	}
	return fmt.Errorf("no event is at both ends:\n%s", out)
}

// runPrintedCommands runs the commands that the demo prints, if they need only a shell.
func runPrintedCommands(t *testing.T, p *testkit.Process) {
	t.Helper()
	out := p.Out.String()
	exported := regexp.MustCompile(
		`export (HUBRELAY_URL=\S+) (HUBRELAY_KEY=\S+) (HUBRELAY_HUB=\S+) (HUBRELAY_ADMIN=\S+)`).FindStringSubmatch(out)
	if exported == nil {
		t.Fatalf("the output has no export command:\n%s", out)
	}
	if err := errors.Join(hasAll(out, "listen --topic '*.error'", "curl -sS $HUBRELAY_URL",
		"redis-cli -s ")...); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
	if out, errOut, code := call(t, exported[1:], "", "sinks", "list"); code != 0 || !strings.Contains(out, "webhook") {
		t.Errorf("sinks list ended with %d:\n%s%s", code, out, errOut)
	}
	out, errOut, code := call(t, exported[1:], "", "publish", "--topic", "container.created", "--object", "by-hand",
		"--json")
	if code != 0 {
		t.Fatalf("publish to the demo ended with %d: %s%s", code, out, errOut)
	}
	testkit.Eventually(t, "what was published by hand", func() error {
		if n := strings.Count(p.Out.String(), "by-hand"); n < 2 {
			return fmt.Errorf("it was printed %d times", n)
		}
		return nil
	})
	runPrintedMigrations(t, p, exported[1:])
}

// runPrintedMigrations runs the migrations that the demo prints.
func runPrintedMigrations(t *testing.T, p *testkit.Process, env []string) {
	t.Helper()
	_, script, _ := strings.Cut(p.Out.String(), "# migrate an instance")
	script, _, ok := strings.Cut("#"+script, "Ctrl-C")
	if !ok {
		t.Fatal("the demo prints no migration")
	}
	listener := start(t, env, "listen", "job.*", "container.instance.*")
	testkit.Eventually(t, "the listener to be connected", listener.Err.Contains("connected"))
	shell := exec.Command("sh", "-eu", "-c", script)
	shell.Env = append(os.Environ(), env...)
	out, err := shell.CombinedOutput()
	if err := errors.Join(append(hasAll(string(out), "Copy files", "completed", `"action":"migrate"`,
		"Migrate instance shop-2 of container shop from server-2 to server-3", "shop       shop-1     server-2"),
		err)...); err != nil {
		t.Errorf("%v:\n%s\n%s", err, script, out)
	}
	for _, part := range []string{
		"state=new server=server-1 → server-2 instance=shop-1 object=", "step=Copy files: done server=server-1 → " +
			"server-2 instance=shop-1",
		"state=migrating server=server-2 job=", "state=running server=server-3 job=",
	} {
		testkit.Eventually(t, "the event in the output of listen", listener.Out.Contains(part))
	}
}

// TestDemo_WithoutRedisServer runs on a machine without redis-server.
func TestDemo_WithoutRedisServer(t *testing.T) {
	t.Parallel()
	home := tempDir(t)
	env := []string{"PATH=" + filepath.Join(home, "empty")}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	// The demo starts even if its ports are in use.
	p := startDemo(t, home, taken.Addr().String(), env...)
	if err := p.Out.Contains("redis-server is not installed")(); err != nil {
		t.Error(err)
	}
	if err := p.Out.Contains("redis-cli")(); err == nil {
		t.Error("the output suggests redis-cli for a Redis in memory")
	}
	dir := filepath.Join(home, fmt.Sprintf("hubrelay-demo-%d", os.Getuid()))
	waitForMigration(t, p, dir)
	p.Signal(syscall.SIGTERM)
	if code := p.Exit(t); code != 0 {
		t.Errorf("the demo ended with %d after SIGTERM", code)
	}
	waitUntilCleanedUp(t, dir)

	file := writeFile(t, home, "hubrelay.yaml",
		daemonConfig{redis: fmt.Sprintf("data_dir: %q", filepath.Join(home, "data"))}.renderYAML())
	_, errOut, code := call(t, env, "", "serve", "-c", file)
	if err := errors.Join(hasAll(errOut, "apt install redis-server", "brew install redis",
		`"memory:"`)...); code != 1 || err != nil {
		t.Errorf("serve ended with %d, %v:\n%s", code, err, errOut)
	}
	file = writeFile(t, home, "memory.yaml", daemonConfig{redis: `url: "memory:"`}.renderYAML())
	d := serveFile(t, file, env...)
	ws := d.connect(t, opsKey, "hub-1", "")
	d.Publish(t, "hub-1", "application/json", plain, nil)
	ws.wait(t, 1)
}
