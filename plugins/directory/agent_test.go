package directory

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

func (r *rig) read(path string) string {
	data, _ := os.ReadFile(filepath.Join(r.a, path))
	return string(data)
}

func TestAgent_RestartsCommand(t *testing.T) {
	t.Parallel()
	r := newRig(t, "/bin/sh", "-c", `echo run >> volumes/data/runs; echo "I fail"; exit 3`)
	r.configure()
	r.until("it has run three times", func() bool { return strings.Count(r.read("i/volumes/data/runs"), "run") >= 3 })
	log := r.read("i/output.log")
	if !strings.Contains(log, "I fail\n") || !strings.Contains(log, "ended with exit status 3") {
		t.Error(log)
	}
}

func TestAgent_ContinuesWithoutDriver(t *testing.T) {
	t.Parallel()
	r := newRig(t, "/bin/sh", "-c", ticker)
	// A driver in another process is killed at "start", before it has started the agent.
	r.killAt("clean")
	must(t, r.d.Close(), r.d.Close())
	r.running(r.b)
	state, err := readState(filepath.Join(r.b, "i"))
	must(t, err)
	// The next one finds it, and starts no second one.
	r.configure(server("a", r.a), server("b", r.b, "i"))
	must(t, r.d.Migrate(t.Context(), r.m, r.report))
	r.configure(server("a", r.a), server("b", r.b, "i"))
	r.running(r.b)
	if again, err := readState(filepath.Join(r.b, "i")); err != nil || again.PID != state.PID || state.PID == 0 {
		t.Errorf("%+v became %+v, %v", state, again, err)
	}
	if len(r.d.agents.pids) != 0 {
		t.Error("a second agent was started")
	}
}

func TestAgent_CommandEndsWithKilledAgent(t *testing.T) {
	t.Parallel()
	r := newRig(t, "/bin/sh", "-c", `echo $$ >> volumes/data/pids; exec sleep 1000`)
	r.configure()
	pids := func() []string { return strings.Fields(r.read("i/volumes/data/pids")) }
	r.until("it runs", func() bool { return len(pids()) == 1 })
	for pid := range r.d.agents.pids {
		must(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	first, err := strconv.Atoi(pids()[0])
	must(t, err)
	r.until("it is gone", func() bool { return errors.Is(syscall.Kill(first, 0), syscall.ESRCH) })
	r.until("its agent is gone", func() bool { running, _ := AgentRunning(filepath.Join(r.a, "i")); return !running })
	r.configure()
	r.until("it runs again", func() bool { return len(pids()) == 2 })
}

// Nothing of the daemon's reaches a command: no file, no variable.
func TestAgent_CommandInheritsNothing(t *testing.T) {
	t.Setenv("HUBRELAY_SECRET", "a secret")
	r := newRig(t, "/bin/sh", "-c",
		`env > volumes/data/env; ls /proc/$$/fd > volumes/data/fds; pwd > volumes/data/pwd; sleep 1000`)
	f, err := os.Open(os.DevNull)
	must(t, err)
	defer func() { _ = f.Close() }()
	r.configure()
	r.until("it runs", func() bool { return r.read("i/volumes/data/pwd") != "" })
	env := r.read("i/volumes/data/env")
	if strings.Contains(env, "secret") || !strings.Contains(env, "COLOUR=green\n") ||
		!strings.Contains(env, "HUBRELAY_INSTANCE=i\n") {
		t.Error(env)
	}
	for _, fd := range strings.Fields(r.read("i/volumes/data/fds")) {
		if n, err := strconv.Atoi(fd); err != nil || n > 2 && n != 255 && n != 10 { // the shell's own
			t.Errorf("file %s is open", fd)
		}
	}
	if got := strings.TrimSpace(r.read("i/volumes/data/pwd")); got != filepath.Join(r.a, "i") {
		t.Errorf("it works in %s", got)
	}
}

// an agent that cannot write its state, as on a full disk, keeps the command running.
func TestAgent_RunsWithoutStateFile(t *testing.T) {
	t.Parallel()
	r := newRig(t, "/bin/sh", "-c", ticker)
	must(t, os.Mkdir(filepath.Join(r.a, "i", fileAgentState), 0o700))
	r.configure()
	r.running(r.a)
}

func TestAgent_KillsProcessesThatIgnoreSIGTERM(t *testing.T) {
	t.Parallel()
	r := newRig(t, "/bin/sh", "-c",
		`trap '' TERM; echo $$ > volumes/data/pid; (while :; do date +%s%N > volumes/data/now; sleep 0.05; done) & `+
			`while :; do sleep 1; done`)
	// The command always ignores SIGTERM.
	r.d.agents.command = slices.Insert(slices.Clone(r.d.agents.command), 1, graceVariable+"=1s")
	r.configure()
	r.running(r.a)
	pid, err := strconv.Atoi(strings.TrimSpace(r.read("i/volumes/data/pid")))
	must(t, err)
	must(t, r.d.Migrate(t.Context(), r.m, r.report))
	r.until("its group is gone or is that of another process now",
		func() bool { return errors.Is(syscall.Kill(-pid, 0), syscall.ESRCH) })
	r.running(r.b)
	r.nothingLeft(r.a)
}

func TestMigrate_FailedStartRestoresSource(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		command []string
		says    string
	}{
		"the command ends": {[]string{
			"/bin/sh", "-c",
			`test "$PWD" = "$(cat volumes/other/file)" || { echo "I do not like it here"; exit 7; }; ` +
				ticker,
		}, "ended with exit status 7"},
		"the program is gone": {[]string{"./run"}, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.command...)
			r.d.agents.steady = 10 * time.Second // no stall lets what is about to end count as started
			r.write("i/volumes/other/file", filepath.Join(r.a, "i"))
			if name == "the program is gone" {
				must(t, os.WriteFile(filepath.Join(r.a, "i/volumes/data/run"), []byte("#!/bin/sh\n"+ticker), 0o755),
					os.Symlink(filepath.Join(r.a, "i/volumes/data/run"), filepath.Join(r.a, "i/run")))
			}
			r.configure()
			r.running(r.a)
			want := r.contents(r.a)
			r.failed(r.d.Migrate(t.Context(), r.m, r.report), want, "does not start on server b", c.says)
			log := r.read("i/output.log")
			_, there, _ := strings.Cut(log, "the output on server b:\n") // lines of the agent may precede the command's
			if name == "the command ends" && !strings.Contains(there, "I do not like it here\n") {
				t.Errorf("output.log holds %q", log)
			}
		})
	}
}

func TestMigrate_SourceDirectoryDisappears(t *testing.T) {
	t.Parallel()
	r := newRig(t, "/bin/sh", "-c", ticker)
	want := r.contents(r.a)
	r.d.stepHook = func(point string) {
		if point == "verify" {
			must(t, os.Rename(r.a, r.a+"-away"))
		}
	}
	err := r.d.Migrate(t.Context(), r.m, r.report)
	if !relay.IsIndeterminate(err) || !strings.Contains(err.Error(), "server a") ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
	r.d.stepHook = func(string) {}
	r.m.Lease, r.m.Undo = 2, true
	if err := r.d.Migrate(t.Context(), r.m, r.report); !relay.IsIndeterminate(err) {
		t.Errorf("%v", err)
	}
	must(t, os.Rename(r.a+"-away", r.a))
	r.m.Lease = 3
	r.settled(r.d.Migrate(t.Context(), r.m, r.report), false, want)
}

func TestAgentOutput_LimitsFileSize(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	o, err := openOutput(path, 1000)
	must(t, err)
	for i := range 50_000 {
		_, err := fmt.Fprintln(o.pipe, i)
		must(t, err)
	}
	must(t, o.Close())
	info, err := os.Stat(path)
	must(t, err)
	if former, err := os.Stat(path + ".1"); err != nil || info.Size() > 64<<10 || former.Size() > 64<<10 {
		t.Error(info, former, err)
	}
}

// The last output of a command is written, even to a slow disk.
func TestAgentOutput_CloseWritesBufferedOutput(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	o, err := openOutput(path, maxOutput)
	must(t, err)
	conn, err := o.read.SyscallConn()
	must(t, err)
	o.mu.Lock() // acts as a hanging disk
	const line, lines = "no database\n", 5_000
	for range lines { // lines after the first one stay in the pipe, which is large enough
		_, err := o.pipe.WriteString(line)
		must(t, err)
	}
	closed := make(chan error)
	go func() { closed <- o.Close() }()
	testkit.WaitFor(t, "Close no longer waits for more", func() bool {
		return conn.Read(func(uintptr) bool { return true }) != nil
	})
	o.mu.Unlock()
	must(t, <-closed)
	if text, err := os.ReadFile(path); string(text) != strings.Repeat(line, lines) || err != nil {
		t.Errorf("%d of %d bytes were written, %v", len(text), lines*len(line), err)
	}
}

// Who was held up until there is no time left asks once more.
func TestPollUntil_AsksAgainAtDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for range 100 { // late and due values are read in random order
			stalled := false
			ok, err := pollUntil(t.Context(), time.Second, func() (bool, error) {
				if stalled {
					return true, nil
				}
				stalled = true
				time.Sleep(2 * time.Second)
				return false, nil
			})
			if !ok || err != nil {
				t.Fatalf("%v, %v", ok, err)
			}
		}
	})
}

func TestServerPath(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(folder, "a/inner"), 0o755), os.Symlink("a", filepath.Join(folder, "link")),
		os.WriteFile(filepath.Join(folder, "file"), nil, 0o644))
	for name, c := range map[string]struct {
		settings []string
		instance string
		says     string
	}{
		"none":        {settings: []string{``}, says: "settings must be"},
		"unknown key": {settings: []string{`{"path":"/srv","paht":1}`}, says: "paht"},
		"no path":     {settings: []string{`{}`}, says: "path is missing"},
		"relative":    {settings: []string{`{"path":"srv"}`}, says: "must begin with /"},
		"twice": {settings: []string{
			fmt.Sprintf(`{"path":"%s/a"}`, folder),
			fmt.Sprintf(`{"path":"%s/a/"}`, folder),
		}, says: "the path of server s0"},
		"by a link": {settings: []string{
			fmt.Sprintf(`{"path":"%s/a"}`, folder),
			fmt.Sprintf(`{"path":"%s/link"}`, folder),
		}, says: "the path of server s0"},
		"inside": {settings: []string{
			fmt.Sprintf(`{"path":"%s/a"}`, folder),
			fmt.Sprintf(`{"path":"%s/a/inner"}`, folder),
		}, says: "contains the other"},
		"missing": {settings: []string{fmt.Sprintf(`{"path":"%s/b"}`, folder)}, says: "does not exist"},
		"a file":  {settings: []string{fmt.Sprintf(`{"path":"%s/file"}`, folder)}, says: "not a directory"},
		"outside": {settings: []string{fmt.Sprintf(`{"path":"%s/a"}`, folder)}, instance: "../a", says: `"../a"`},
		"hidden": {
			settings: []string{fmt.Sprintf(`{"path":"%s/a"}`, folder)}, instance: ".hubrelay",
			says: "begins with a dot",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var servers []relay.Server
			for i, s := range c.settings {
				servers = append(servers, relay.Server{ID: fmt.Sprintf("s%d", i), Settings: []byte(s)})
			}
			if c.instance != "" {
				servers[0].Instances = []string{c.instance}
			}
			err := newDriver().Configure(t.Context(), servers)
			if err == nil || !strings.Contains(err.Error(), c.says) ||
				!strings.Contains(err.Error(), fmt.Sprintf("server s%d", len(servers)-1)) {
				t.Errorf("%v does not say %q", err, c.says)
			}
		})
	}
}

func TestDriver_Describe(t *testing.T) {
	t.Parallel()
	d, err := newDriver().Describe(t.Context())
	if err != nil || d.Name != Name || len(d.Steps) != 7 {
		t.Errorf("%+v %v", d, err)
	}
}
