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

// The keys of every daemon in these tests: one of a platform, and one that can only listen.
const (
	opsKey    = "ops-key-0123456789abcdef"
	readerKey = "reader-key-0123456789abcdef"
)

var programs testkit.Programs

func TestMain(m *testing.M) {
	testkit.RunParallel(8) // most tests wait for other processes
	os.Exit(programs.Main(m))
}

// binary returns the path of the program under test.
func binary(t *testing.T) string {
	t.Helper()
	return programs.Path(t, ".")
}

// daemonConfig is the configuration of a daemon in YAML. The first three parts are inside {…}, the others are lines.
type daemonConfig struct {
	server, redis, auth string
	keys, sinks         string
	env                 []string
}

func (d daemonConfig) renderYAML() string {
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
`, d.server, testkit.HealthConfig, d.redis, d.auth, opsKey, readerKey, d.keys, d.sinks)
}

// tempDir creates a directory with a path that is short enough for a unix socket. When the test ends, a redis-server
// in it is killed.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if pid := redisPID(filepath.Join(dir, "data")); pid > 0 && !hasEnded(pid) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_ = os.RemoveAll(dir)
	})
	return dir
}

func writeFile(t *testing.T, dir, name, text string) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// daemon is a running `hubrelay serve`.
type daemon struct{ *testkit.Daemon }

// newDaemon returns a daemon that may not be ready.
func newDaemon(p *testkit.Process) *daemon {
	return &daemon{&testkit.Daemon{Process: p, Key: opsKey}}
}

// serve starts a daemon and waits until it is ready. When the test ends, the daemon must stop without errors.
func serve(t *testing.T, s daemonConfig) *daemon {
	t.Helper()
	return serveFile(t, writeFile(t, tempDir(t), "hubrelay.yaml", s.renderYAML()), s.env...)
}

func serveFile(t *testing.T, file string, env ...string) *daemon {
	t.Helper()
	return serveIn(t, filepath.Dir(file), file, env...) // data is relative to the working directory
}

// serveIn starts a daemon in a directory. file can be relative to it.
func serveIn(t *testing.T, dir, file string, env ...string) *daemon {
	t.Helper()
	d := &daemon{testkit.Serve(t, command(t, dir, env, "serve", "-c", file))}
	d.Key = opsKey
	return d
}

// command returns the program as a command in a directory, because t.Chdir prevents parallel tests. env is added to
// the environment.
func command(t *testing.T, dir string, env []string, args ...string) testkit.Command {
	t.Helper()
	return testkit.Command{Path: binary(t), Args: args, Dir: dir, Env: env}
}

// start runs the program until the test ends.
func start(t *testing.T, env []string, args ...string) *testkit.Process {
	t.Helper()
	return testkit.Start(t, command(t, "", env, args...))
}

// call runs the program until it ends, and returns its output and exit code.
func call(t *testing.T, env []string, stdin string, args ...string) (out, errOut string, code int) {
	t.Helper()
	return callIn(t, "", env, stdin, args...)
}

// callIn runs the program in a directory until it ends.
func callIn(t *testing.T, dir string, env []string, stdin string, args ...string) (out, errOut string, code int) {
	t.Helper()
	return testkit.Run(t, command(t, dir, env, args...), stdin)
}
