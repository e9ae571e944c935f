package examples

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

var programs testkit.Programs

func TestMain(m *testing.M) { os.Exit(programs.Main(m)) }

// hubrelay returns the path of the program.
func hubrelay(t *testing.T) string {
	t.Helper()
	return programs.Path(t, "../cmd/hubrelay")
}

// start runs a program with env added to the environment until the test ends. Its standard input stays open, and Out
// contains both output streams.
func start(t *testing.T, env []string, name string, args ...string) *testkit.Process {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Fatalf("%v: make test installs what the examples need", err)
	}
	return testkit.Start(t, testkit.Command{Path: name, Args: args, Env: env, OneOutput: true, Group: true})
}

// run runs a program until it ends and returns its output. A failure fails the test.
func run(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	p := start(t, env, name, args...)
	if code := p.Exit(t); code != 0 {
		t.Fatalf("%s %s ended with %d:\n%s", name, strings.Join(args, " "), code, p.Out)
	}
	return strings.TrimSuffix(p.Out.String(), "\n")
}
