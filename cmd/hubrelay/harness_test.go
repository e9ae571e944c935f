package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

const patience = testkit.Patience

const notificationsPath = testkit.NotificationsPath

// The keys of every daemon here: a platform's, and one that may only listen.
const (
	opsKey    = "ops-key-0123456789abcdef"
	readerKey = "reader-key-0123456789abcdef"
)

var programs testkit.Programs

func TestMain(m *testing.M) {
	testkit.RunParallel(8) // nearly all tests wait for other processes
	os.Exit(programs.Main(m))
}

// binary is the path of the program under test.
func binary(t *testing.T) string {
	t.Helper()
	return programs.Path(t, ".")
}

// initConfig is what a test wants of a daemon. The parts are YAML: the first three go on in {…}, the others are lines.
type initConfig struct {
	server, redis, auth string
	keys, sinks         string
	env                 []string
}

func (s initConfig) renderYAML() string {
	return fmt.Sprintf(`server: {listen: "127.0.0.1:0", shutdown_grace: 5s%s}
%s
redis: {%s}
auth:
  %s
  keys:
    - {name: ops, key: %s, account_id: "*", hubs: ["*"], capabilities: [notifications-publish]}
    - {name: reader, key: %s, account_id: acme, hubs: [hub-1, hub-2]}
%s
sinks:
%s
`, s.server, testkit.HealthConfig, s.redis, s.auth, opsKey, readerKey, s.keys, s.sinks)
}

// folder is a new one with a path short enough for a unix socket. A redis-server that still works in it is killed
// when the test ends.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if pid := redisPID(filepath.Join(dir, "data")); pid > 0 && !gone(pid) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_ = os.RemoveAll(dir)
	})
	return dir
}

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// daemon is a hubrelay that serves.
type daemon struct{ *testkit.Daemon }

// newDaemon is a daemon that may not serve yet.
func newDaemon(p *testkit.Process) *daemon {
	return &daemon{&testkit.Daemon{Process: p, Key: opsKey}}
}

// serve starts a daemon and waits until it serves. When the test ends it must stop in order.
func serve(t *testing.T, s initConfig) *daemon {
	t.Helper()
	return serveFile(t, write(t, folder(t), "hubrelay.yaml", s.renderYAML()), s.env...)
}

func serveFile(t *testing.T, file string, env ...string) *daemon {
	t.Helper()
	return serveIn(t, filepath.Dir(file), file, env...) // where its data goes
}

// serveIn does the same in a folder, which file may be relative to.
func serveIn(t *testing.T, dir, file string, env ...string) *daemon {
	t.Helper()
	d := &daemon{testkit.Serve(t, command(t, dir, env, "serve", "-c", file))}
	d.Key = opsKey
	return d
}

// command runs the program in a folder; t.Chdir would prevent parallel tests. env is added to the environment.
func command(t *testing.T, dir string, env []string, args ...string) testkit.Command {
	t.Helper()
	return testkit.Command{Path: binary(t), Args: args, Dir: dir, Env: env}
}

// start runs the program until the test ends.
func start(t *testing.T, env []string, args ...string) *testkit.Process {
	t.Helper()
	return testkit.Start(t, command(t, "", env, args...))
}

// call runs the program to its end and returns what it printed and its exit status.
func call(t *testing.T, env []string, stdin string, args ...string) (out, errOut string, code int) {
	t.Helper()
	return callIn(t, "", env, stdin, args...)
}

// callIn does the same in a folder.
func callIn(t *testing.T, dir string, env []string, stdin string, args ...string) (out, errOut string, code int) {
	t.Helper()
	return testkit.Run(t, command(t, dir, env, args...), stdin)
}
