//go:build unix

package testkit_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

func shell(script string) testkit.Command {
	return testkit.Command{Path: "sh", Args: []string{"-c", script}}
}

func TestRun(t *testing.T) {
	t.Setenv("HUBRELAY_URL", "http://elsewhere.example")
	t.Setenv("GORACE", "halt_on_error=1")
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := shell(`echo "$(cat) $(pwd) $ADDED [$HUBRELAY_URL] $GORACE"; echo wrong >&2; exit 3`)
	c.Dir, c.Env = dir, []string{"ADDED=yes"}
	out, errOut, status := testkit.Run(t, c, "input")
	if want := "input " + dir + " yes [] atexit_sleep_ms=0\n"; out != want || errOut != "wrong\n" || status != 3 {
		t.Errorf("got %q, %q, %d, want %q, %q, 3", out, errOut, status, want, "wrong\n")
	}
	c = shell("echo one; echo two >&2")
	c.OneOutput = true
	if out, errOut, status := testkit.Run(t, c, ""); out != "one\ntwo\n" || errOut != out || status != 0 {
		t.Errorf("got %q, %q, %d, want both lines in both", out, errOut, status)
	}
}

func TestProcess_StopAndKill(t *testing.T) {
	ready := `echo ready; while :; do sleep 0.01; done`
	isReady := func(line string) bool { return line == "ready" }

	stopped := testkit.Start(t, shell(`trap 'exit 0' TERM; `+ready))
	stopped.Line(t, "that it is ready", isReady)
	stopped.Stop(t)
	stopped.Stop(t) // has no effect

	killed := testkit.Start(t, shell(`trap '' TERM; `+ready))
	killed.Line(t, "that it is ready", isReady)
	killed.Kill()
	if status := killed.Exit(t); status != -1 {
		t.Errorf("got status %d after Kill, want -1", status)
	}
	<-killed.Done()
}

func TestGroupEndsWithItsProcess(t *testing.T) {
	c := shell(`sleep 1000 & echo $!`)
	c.Group = true
	out, _, status := testkit.Run(t, c, "")
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil || status != 0 {
		t.Fatalf("got %q, %d", out, status)
	}
	testkit.WaitFor(t, "the child to end", func() bool {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) || err == nil && strings.Contains(string(stat), ") Z ")
	})
}

// The test runs itself again with ignored signals, as under nohup or in the background of a shell.
func TestProgramsDoNotInheritIgnoredSignals(t *testing.T) {
	const again = "TESTKIT_SIGNALS_ARE_IGNORED"
	if os.Getenv(again) == "" {
		cmd := exec.Command("sh", "-c", `trap "" HUP INT; exec "$0" "$@"`, os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), again+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
	for _, signal := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT} {
		_, _, status := testkit.Run(t, shell("kill -"+strconv.Itoa(int(signal))+" $$; echo ignored"), "")
		if status != -1 {
			t.Errorf("got status %d after %s, want -1", status, signal)
		}
		if os.Getenv(again) != "" { // the test itself still ignores it
			if err := syscall.Kill(os.Getpid(), signal); err != nil {
				t.Fatal(err)
			}
		}
	}
}

var programs testkit.Programs

func TestMain(m *testing.M) { os.Exit(programs.Main(m)) }

func TestProgramsBuildsOnce(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir("greet", 0o700); err != nil {
		t.Fatal(err)
	}
	write("go.mod", "module example.com/greet\n")
	write("greet/main.go", `package main; func main() { println("hello") }`)
	path := programs.Path(t, "./greet")
	if _, out, status := testkit.Run(t, testkit.Command{Path: path}, ""); out != "hello\n" || status != 0 {
		t.Errorf("got %q, %d, want a greeting", out, status)
	}
	write("greet/main.go", `no program`)
	if got := programs.Path(t, "./greet"); got != path {
		t.Errorf("got %s, want %s", got, path)
	}
	if err := testkit.Build(dir, "./greet"); err == nil || !strings.Contains(err.Error(), "expected 'package'") {
		t.Errorf("got %v, want the error of the compiler", err)
	}
}
