package main_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// terminalSession is a run of the program in a terminal.
type terminalSession struct {
	terminal *os.File
	said     testkit.Output
	read     chan struct{} // closed after all output was read
	cmd      *exec.Cmd
}

// startInTerminal starts the program in a directory with a new terminal.
func startInTerminal(t *testing.T, dir string, args ...string) *terminalSession {
	t.Helper()
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(terminal.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	user, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := &terminalSession{terminal: terminal, cmd: exec.Command(binary(t), args...)}
	c.cmd.Dir = dir
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = user, user, user
	c.cmd.Env = append(os.Environ(), "NO_COLOR=1", "GORACE=atexit_sleep_ms=0")
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = user.Close()
	c.read = make(chan struct{})
	go func() {
		defer close(c.read)
		buffer := make([]byte, 4096)
		for {
			n, err := terminal.Read(buffer)
			_, _ = c.said.Write(buffer[:n])
			if err != nil {
				return // the program has ended
			}
		}
	}()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
		<-c.read
		_ = terminal.Close()
	})
	return c
}

// answer waits for a question and types text.
func (s *terminalSession) answer(t *testing.T, question, text string) {
	t.Helper()
	before := s.waitForPrompt(t, question)
	if _, err := s.terminal.WriteString(text); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "what follows "+question, func() error {
		if len(s.said.String()) == before {
			return errors.New("nothing")
		}
		return nil
	})
}

// waitForPrompt waits for a question and returns the length of the output.
func (s *terminalSession) waitForPrompt(t *testing.T, question string) (length int) {
	t.Helper()
	testkit.Eventually(t, "the question "+question, func() error {
		said := s.said.String()
		length = len(said)
		if strings.HasSuffix(said, question) {
			return nil
		}
		return fmt.Errorf("it said\n%s", said)
	})
	return length
}

// expectHidden waits for a question and checks that the terminal does not show an answer, even a fast one.
func (s *terminalSession) expectHidden(t *testing.T, question string) {
	t.Helper()
	s.waitForPrompt(t, question)
	if state, err := unix.IoctlGetTermios(int(s.terminal.Fd()), unix.TCGETS); err != nil || state.Lflag&unix.ECHO != 0 {
		t.Errorf("the terminal shows typed text after %s: %v", question, err)
	}
}

// end waits until the program ends and returns the exit code.
func (s *terminalSession) end(t *testing.T) int {
	t.Helper()
	limit := time.AfterFunc(patience, func() { _ = s.cmd.Process.Kill() })
	defer limit.Stop()
	_ = s.cmd.Wait()
	<-s.read
	return s.cmd.ProcessState.ExitCode()
}

// A user answers, makes a mistake, answers again, and gets a valid configuration.
func TestInit_AsksInTerminal(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	c := startInTerminal(t, dir, "init")
	c.answer(t, "producers [127.0.0.1:8080]: ", "8080\n")
	c.answer(t, "producers [127.0.0.1:8080]: ", "127.0.0.1:8090\n")
	c.answer(t, "empty for an embedded one: ", "\n")
	c.answer(t, "empty to finish: ", "telegraph\n")
	c.answer(t, "empty to finish: ", "pagerduty\n")
	c.answer(t, "(Events API v2): ", "\n") // the second answer
	c.answer(t, "empty to finish: ", "exec\n")
	c.answer(t, "separated by spaces: ", "logger -t 'x y'\n")
	c.answer(t, "separated by spaces: ", "\n")
	c.answer(t, "empty to finish: ", "1\n")
	c.answer(t, "https://…: ", "example.com\n")
	c.answer(t, "https://…: ", "http://localhost:3000/hook\n")
	c.answer(t, "y or n [n]: ", "\n")
	c.answer(t, "https://…: ", "http://127.0.0.1:3000/hook\n")
	c.answer(t, "y or n [n]: ", "y\n")
	c.answer(t, "!*.updated [*]: ", "containr.*\n")
	c.answer(t, "!*.updated [*]: ", "billing.*, !*.updated\n")
	c.answer(t, "empty to finish: ", "email\n")
	c.answer(t, "The SMTP server: ", "smtp.example.com\n")
	c.answer(t, "if not required: ", "relay\n")
	c.expectHidden(t, "Password: ")
	c.answer(t, "Password: ", "hunter2-hunter2\n")
	c.answer(t, "From: ", "relay@example.com\n")
	c.answer(t, "To: ", "nobody\n")
	c.answer(t, "To: ", "ops@example.com, dev@example.com\n")
	c.answer(t, "!*.updated [*]: ", "*.error\n")
	c.answer(t, "empty to finish: ", "\n")
	if code := c.end(t); code != 0 {
		t.Fatalf("%d:\n%s", code, c.said.String())
	}
	if said := c.said.String(); strings.Contains(said, "hunter2") || strings.Count(said, "write host:port") != 1 {
		t.Errorf("it said\n%s", said)
	}
	if out, errOut, code := callIn(t, dir, nil, "", "config", "check", "-c", "hubrelay.yaml"); code != 0 ||
		!strings.Contains(out, "1 key, 2 sinks") {
		t.Errorf("%d %s%s", code, out, errOut)
	}
	text, err := os.ReadFile(filepath.Join(dir, "hubrelay.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`listen: "127.0.0.1:8090"`, `topics: ["billing.*", "!*.updated"]`, `allow_cidrs: ["127.0.0.1/32"]`,
		`to: ["ops@example.com", "dev@example.com"]`, `password: "hunter2-hunter2"`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is not in\n%s", want, text)
		}
	}
}

// Without a user name, init does not ask for a password.
func TestInit_SkipsDependentQuestions(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	c := startInTerminal(t, dir, "init", "--listen", "127.0.0.1:8090", "--redis", "memory:")
	c.answer(t, "empty to finish: ", "email\n")
	c.answer(t, "The SMTP server: ", "smtp.example.com\n")
	c.answer(t, "if not required: ", "\n")
	c.answer(t, "From: ", "relay@example.com\n")
	c.answer(t, "To: ", "ops@example.com\n")
	c.answer(t, "!*.updated [*]: ", "\n")
	c.answer(t, "empty to finish: ", "\n")
	if code := c.end(t); code != 0 || !strings.Contains(c.said.String(), "HUBRELAY_URL=http://127.0.0.1:8090 ") {
		t.Errorf("%d:\n%s", code, c.said.String())
	}
}

// Ctrl-C at a password prompt writes nothing and turns the echo on again.
func TestInit_InterruptedAtPassword(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	c := startInTerminal(t, dir, "init")
	c.answer(t, "producers [127.0.0.1:8080]: ", "\n")
	c.answer(t, "empty for an embedded one: ", "\n")
	c.answer(t, "empty to finish: ", "pagerduty\n")
	c.expectHidden(t, "(Events API v2): ")
	c.answer(t, "(Events API v2): ", "abc\x03")
	if code := c.end(t); code != 1 || !strings.Contains(c.said.String(), "hubrelay: nothing was written") {
		t.Errorf("%d:\n%s", code, c.said.String())
	}
	state, err := unix.IoctlGetTermios(int(c.terminal.Fd()), unix.TCGETS)
	if err != nil || state.Lflag&unix.ECHO == 0 {
		t.Errorf("the terminal echoes nothing: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v is there: %v", left, err)
	}
}

// On a terminal, 'sinks replay' shows the number of events and asks for confirmation.
func TestSinksReplay_AsksInTerminal(t *testing.T) {
	t.Parallel()
	const dryRun = "POST /api/sinks/billing/replay map[after:2h dry_run:true]"
	for answer, want := range map[string][]string{
		"\n":    {dryRun, "GET /api/sinks/billing"},
		"yes\n": {dryRun, "GET /api/sinks/billing", "POST /api/sinks/billing/replay map[after:2h]"},
	} {
		admin := startFakeAdmin(t, adminAnswers())
		c := startInTerminal(t, t.TempDir(), "sinks", "replay", "billing", "--after", "2h", "--admin", admin.URL)
		c.answer(t, "Send 42 events to the sink billing (webhook) again? [y/N] ", answer)
		code := c.end(t)
		if got := admin.requests(); !slices.Equal(got, want) || (code == 0) != (len(want) == 3) {
			t.Errorf("after the answer %q it ended with %d after asking %q:\n%s", answer, code, got, c.said.String())
		}
	}
}
