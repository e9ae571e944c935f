package exec

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

func TestMain(m *testing.M) {
	testkit.RunParallel(8) // the tests wait most of the time
	goleak.VerifyTestMain(m)
}

var sinkSettings = relay.SinkSettings{Name: "test", Log: slog.New(slog.DiscardHandler)}

// script writes a program into a new directory.
func script(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run.sh")
	// A test that forks at this moment would inherit the file open for writing, and the file could not be executed.
	syscall.ForkLock.Lock()
	defer syscall.ForkLock.Unlock()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func openTest(t testing.TB, c *Config) relay.Sink {
	t.Helper()
	s, err := Kind().Open(sinkSettings, c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func openIn(t testing.TB, dir string, c *Config) relay.Sink {
	t.Helper()
	settings := sinkSettings
	settings.Dir = dir
	s, err := Kind().Open(settings, c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	t.Parallel()
	sinktest.Run(t, sinktest.Harness{
		Secrets: []string{"s3cret"},
		Batches: true,
		Skip: map[sinktest.Behavior]string{
			sinktest.Throttle: "a status names no time",
			sinktest.Gone:     "a command that wants nothing more has no business in the configuration",
		},
		Open: func(t *testing.T, b sinktest.Behavior) (relay.Sink, func() []string) {
			program := script(t, map[sinktest.Behavior]string{
				sinktest.Fail:   `cat >/dev/null; echo "$HUBRELAY_ID" >> report; echo "$PASSWORD"; exit 75`,
				sinktest.Reject: `echo "$HUBRELAY_ID" >> report; echo "$PASSWORD" >&2; exit 65`,
				sinktest.Hang:   `echo "$HUBRELAY_ID" >> report; sleep 1000`,
			}[b]+"\n"+`cat >/dev/null; echo "$HUBRELAY_ID" >> report`)
			if b == sinktest.Unreachable {
				program += ".missing"
			}
			dir := t.TempDir()
			s := openTest(t, &Config{
				Command: []string{program, "an argument"}, Env: []string{"PASSWORD=s3cret"}, Dir: dir,
			})
			return s, func() []string {
				text, err := os.ReadFile(filepath.Join(dir, "report"))
				if err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Error(err)
				}
				return strings.Fields(string(text))
			}
		},
	})
}

// The command sees what Explain shows.
func TestInput(t *testing.T) {
	t.Setenv("DAEMON_PASSWORD", "s3cret")
	t.Setenv("PASSED_ON", "yes indeed")
	dir := t.TempDir()
	c := &Config{
		Command: []string{
			script(t, `cat > input; env | sort > env; pwd > dir; printf '%s\n' "$@" > args`), "$HOME",
			"; rm -rf x",
		}, Dir: dir, Env: []string{"PASSED_ON", "SET=a b=c"},
	}
	s := openTest(t, c)
	one, many := sinktest.Sample("a"), sinktest.SampleDigest("d", 3, 3)
	one.Attempt, one.Notifications[0].Hub = 3, "a\x00b"
	batch := sinktest.SampleBatch("b", 3)
	batch.Notifications[1].Topic = "container.error"
	for _, d := range []relay.Delivery{one, many, batch} {
		if err := s.Deliver(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		read := func(name string) string {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Error(err)
			}
			return string(text)
		}
		explainer, ok := s.(relay.Previewer)
		if !ok {
			t.Fatal("shows nothing")
		}
		e, err := explainer.Preview(t.Context(), d)
		if err != nil || read("input") != string(e.Payload) || read("args") != "$HOME\n; rm -rf x\n" {
			t.Errorf("got %s and %s, explained was %s, %v", read("input"), read("args"), e.Payload, err)
		}
		got := slices.DeleteFunc(strings.Split(strings.TrimSpace(read("env")), "\n"), func(l string) bool {
			// set by the shell
			return strings.HasPrefix(l, "PWD=") || strings.HasPrefix(l, "_=") || strings.HasPrefix(l, "SHLVL=")
		})
		var want []string
		for _, h := range e.Headers {
			switch h.Name {
			case "PASSED_ON":
				h.Value = "yes indeed"
			case "SET":
				h.Value = "a b=c"
			}
			want = append(want, h.Name+"="+h.Value)
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("environment\n%q, explained was\n%q", got, want)
		}
		if d.Batch && (!slices.Contains(got, "HUBRELAY_COUNT=3") || !slices.Contains(got, "HUBRELAY_HUB=hub1") ||
			!slices.Contains(got, "HUBRELAY_TOPIC=")) {
			t.Errorf("%q", got)
		}
		if d.ID == "a" && !slices.Contains(got, "HUBRELAY_HUB=ab") || d.Digest != nil &&
			!slices.Contains(got, "HUBRELAY_COUNT=3") {
			t.Errorf("%q", got)
		}
		if strings.TrimSpace(read("dir")) != dir {
			t.Errorf("ran in %s", read("dir"))
		}
	}
}

func TestEndings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script  string
		outcome relay.Outcome
		status  int
		body    string
		said    string
	}{
		"reads nothing":    {`exit 0`, relay.OutcomeDelivered, 0, "", ""},
		"closes its input": {`exec <&-; echo fine`, relay.OutcomeDelivered, 0, "", ""},
		"fails": {
			`echo out; echo err >&2; exit 3`, relay.OutcomeRetry, 3, "out\nerr\n",
			"ended with status 3",
		},
		"tries again": {`exit 75`, relay.OutcomeRetry, 75, "", "status 75"},
		"refuses": {
			`echo 'no such thing' >&2; exit 65`, relay.OutcomePermanent, 65, "no such thing\n",
			"status 65",
		},
		"is not configured": {`exit 78`, relay.OutcomeRetry, 78, "", "status 78"},
		"dies":              {`kill -KILL $$`, relay.OutcomeRetry, 137, "", "signal 9 (killed)"},
		"says 50 MiB": {
			`head -c 52428800 /dev/zero | tr '\0' x; exit 1`, relay.OutcomeRetry, 1,
			strings.Repeat("x", keptOutput), "",
		},
		"says what is wrong": {`printf 'a\377\303b'; exit 1`, relay.OutcomeRetry, 1, "ab", ""},
		"tells a secret": {
			`printf "%01020d%s" 0 "$TOKEN"; exit 1`, relay.OutcomeRetry, 1,
			strings.Repeat("0", 1020) + "(red", "",
		},
		"leaves one behind": {`sleep 1000 & echo $! > "$PID"; exit 0`, relay.OutcomeDelivered, 0, "", ""},
		"many that hold on": {
			`for i in 1 2 3; do sleep 1000 & done; echo $! > "$PID"; exit 4`, relay.OutcomeRetry, 4,
			"", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pid := filepath.Join(t.TempDir(), "pid")
			s := openTest(t, &Config{
				Command: []string{script(t, c.script)}, Env: []string{"TOKEN=tok-s3cret", "PID=" + pid},
			})
			err := s.Deliver(t.Context(), sinktest.SampleDigest("d", 900, 900)) // more than a pipe holds
			if outcome, _ := relay.Classify(err); outcome != c.outcome || err != nil &&
				!strings.Contains(err.Error(), c.said) {
				t.Fatalf("%s: %v", outcome, err)
			}
			var answer *relay.ResponseError
			if c.outcome != relay.OutcomeDelivered &&
				(!errors.As(err, &answer) || answer.Status != c.status || answer.Body != c.body) {
				t.Errorf("answer %+v", answer)
			}
			gone(t, pid)
		})
	}
}

// gone waits until the process is no more whose id is in the file, if there is one.
func gone(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		return
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, "the process has ended", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

// awaitContent waits until the file contains something, or until the test ends.
func awaitContent(t *testing.T, file string) {
	err := testkit.Poll(func() error {
		text, err := os.ReadFile(file)
		if t.Context().Err() != nil {
			return nil
		}
		if err == nil && len(text) == 0 {
			err = fmt.Errorf("%s is empty", file)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestCannotStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		config Config
		word   string
		warns  string
	}{
		{Config{Command: []string{"no-such-program"}}, "is not in PATH", "command"},
		{Config{Command: []string{"./missing"}}, dir + "/missing does not exist", "command"},
		{Config{Command: []string{dir}}, "is a directory", "command"},
		{Config{Command: []string{file("plain", "x", 0o600)}}, "chmod +x", "command"},
		{Config{Command: []string{file("garbage", "x", 0o700)}}, "not a program for this machine", ""},
		{
			Config{Command: []string{file("odd", "#!/no/such/shell\n", 0o700)}},
			"the interpreter in its first line does not exist", "",
		},
		{
			Config{Command: []string{"sh"}, Dir: "missing"},
			"open the working directory " + dir + "/missing", "dir",
		},
		{Config{Command: []string{"sh"}, Dir: "plain"}, "is not a directory", "dir"},
	} {
		err := openIn(t, dir, &c.config).Deliver(t.Context(), sinktest.Sample("a"))
		if outcome, _ := relay.Classify(err); outcome != relay.OutcomeRetry || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s: %v, want %s", outcome, err, c.word)
		}
		warnings := c.config.withDir(dir).warnings()
		if c.warns == "" && len(warnings) > 0 || c.warns != "" && (len(warnings) != 1 || warnings[0].Field != c.warns) {
			t.Errorf("%v warns %v", c.config.Command, warnings)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config  Config
		problem string
	}{
		{Config{Command: []string{"x", ""}, Env: []string{"A", "B=", "C==\n"}}, ""},
		{Config{}, "command is missing"},
		{Config{Command: []string{""}}, "command is missing"},
		{Config{Command: []string{"builtin:print"}}, "type plugin"},
		{Config{Command: []string{"x", "a\x00"}}, "command.1 contains a NUL"},
		{Config{Command: []string{"x"}, Env: []string{"=s3cret"}}, "env.0 has no name"},
		{
			Config{Command: []string{"x"}, Env: []string{"A", "HUBRELAY_ID=s3cret"}},
			"env.1 has a name that starts with HUBRELAY_",
		},
	} {
		err := c.config.validate()
		if (err == nil) != (c.problem == "") || err != nil &&
			(!strings.Contains(err.Error(), c.problem) || strings.Contains(err.Error(), "s3cret")) {
			t.Errorf("%+v: %v", c.config, err)
		}
	}
}
