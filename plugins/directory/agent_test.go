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
	r.until("its output and its exit are logged", func() bool {
		log := r.read("i/output.log")
		return strings.Contains(log, "I fail\n") && strings.Contains(log, "ended with exit status 3")
	})
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
	// The next driver finds the agent and does not start a second one.
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
	r.until("the command has ended", func() bool { return errors.Is(syscall.Kill(first, 0), syscall.ESRCH) })
	r.until("its agent has ended", func() bool { running, _ := AgentRunning(filepath.Join(r.a, "i")); return !running })
	r.configure()
	r.until("it runs again", func() bool { return len(pids()) == 2 })
}

// A command inherits no open files and no private variables from the daemon.
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
	if strings.Contains(env, "secret") || !strings.Contains(env, "COLOR=green\n") ||
		!strings.Contains(env, "HUBRELAY_INSTANCE=i\n") {
		t.Error(env)
	}
	for _, fd := range strings.Fields(r.read("i/volumes/data/fds")) {
		if n, err := strconv.Atoi(fd); err != nil || n > 2 && n != 255 && n != 10 { // opened by the shell
			t.Errorf("the command inherited file descriptor %s", fd)
		}
	}
	if got, want := strings.TrimSpace(r.read("i/volumes/data/pwd")), filepath.Join(r.a, "i"); got != want {
		t.Errorf("got working directory %s, want %s", got, want)
	}
}

// An agent that cannot write its state, such as on a full disk, keeps the command running.
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
	// The command ignores SIGTERM, so a short grace period is enough.
	r.d.agents.command = slices.Insert(slices.Clone(r.d.agents.command), 1, graceVariable+"=1s")
	r.configure()
	r.running(r.a)
	pid, err := strconv.Atoi(strings.TrimSpace(r.read("i/volumes/data/pid")))
	must(t, err)
	must(t, r.d.Migrate(t.Context(), r.m, r.report))
	r.until("its process group has ended",
		func() bool { return errors.Is(syscall.Kill(-pid, 0), syscall.ESRCH) })
	r.running(r.b)
	r.nothingLeft(r.a)
}

func TestMigrate_FailedStartRestoresSource(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		command []string
		wantErr string
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
			// Even on a slow machine, a failing command never counts as started.
			r.d.agents.stableAfter = 10 * time.Second
			r.write("i/volumes/other/file", filepath.Join(r.a, "i"))
			if name == "the program is gone" {
				must(t, os.WriteFile(filepath.Join(r.a, "i/volumes/data/run"), []byte("#!/bin/sh\n"+ticker), 0o755),
					os.Symlink(filepath.Join(r.a, "i/volumes/data/run"), filepath.Join(r.a, "i/run")))
			}
			r.configure()
			r.running(r.a)
			want := r.contents(r.a)
			r.failed(r.d.Migrate(t.Context(), r.m, r.report), want, "did not start on server b", c.wantErr)
			log := r.read("i/output.log")
			_, there, _ := strings.Cut(log, "the output on server b:\n") // may start with lines of the agent
			if name == "the command ends" && !strings.Contains(there, "I do not like it here\n") {
				t.Errorf("got output.log %q, want the output of the command on server b", log)
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
		t.Errorf("got error %v", err)
	}
	r.d.stepHook = func(string) {}
	r.m.Lease, r.m.Undo = 2, true
	if err := r.d.Migrate(t.Context(), r.m, r.report); !relay.IsIndeterminate(err) {
		t.Errorf("got error %v", err)
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
	for range lines { // all lines after the first fit into the pipe
		_, err := o.pipe.WriteString(line)
		must(t, err)
	}
	closed := make(chan error)
	go func() { closed <- o.Close() }()
	testkit.WaitFor(t, "Close to stop reading", func() bool {
		return conn.Read(func(uintptr) bool { return true }) != nil
	})
	o.mu.Unlock()
	must(t, <-closed)
	if text, err := os.ReadFile(path); string(text) != strings.Repeat(line, lines) || err != nil {
		t.Errorf("got %d bytes and error %v, want %d bytes", len(text), err, lines*len(line))
	}
}

// A caller that was delayed past the deadline checks the condition once more.
func TestPollUntil_ChecksAgainAtDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for range 100 { // select reads the two timers in random order
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
				t.Fatalf("got %v and error %v", ok, err)
			}
		}
	})
}

func TestServerPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "a/inner"), 0o755), os.Symlink("a", filepath.Join(dir, "link")),
		os.WriteFile(filepath.Join(dir, "file"), nil, 0o644))
	for name, c := range map[string]struct {
		settings []string
		instance string
		wantErr  string
	}{
		"empty":       {settings: []string{``}, wantErr: "settings must be"},
		"unknown key": {settings: []string{`{"path":"/srv","paht":1}`}, wantErr: "paht"},
		"no path":     {settings: []string{`{}`}, wantErr: "path is missing"},
		"relative":    {settings: []string{`{"path":"srv"}`}, wantErr: "must start with /"},
		"same path": {settings: []string{
			fmt.Sprintf(`{"path":"%s/a"}`, dir),
			fmt.Sprintf(`{"path":"%s/a/"}`, dir),
		}, wantErr: "the path of server s0"},
		"symbolic link": {settings: []string{
			fmt.Sprintf(`{"path":"%s/a"}`, dir),
			fmt.Sprintf(`{"path":"%s/link"}`, dir),
		}, wantErr: "the path of server s0"},
		"nested": {settings: []string{
			fmt.Sprintf(`{"path":"%s/a"}`, dir),
			fmt.Sprintf(`{"path":"%s/a/inner"}`, dir),
		}, wantErr: "contains the other"},
		"missing": {settings: []string{fmt.Sprintf(`{"path":"%s/b"}`, dir)}, wantErr: "does not exist"},
		"a file":  {settings: []string{fmt.Sprintf(`{"path":"%s/file"}`, dir)}, wantErr: "not a directory"},
		"outside": {settings: []string{fmt.Sprintf(`{"path":"%s/a"}`, dir)}, instance: "../a", wantErr: `"../a"`},
		"hidden": {
			settings: []string{fmt.Sprintf(`{"path":"%s/a"}`, dir)}, instance: ".hubrelay",
			wantErr: "starts with a dot",
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
			if err == nil || !strings.Contains(err.Error(), c.wantErr) ||
				!strings.Contains(err.Error(), fmt.Sprintf("server s%d", len(servers)-1)) {
				t.Errorf("got error %v, want it to name the server and contain %q", err, c.wantErr)
			}
		})
	}
}

func TestDriver_Describe(t *testing.T) {
	t.Parallel()
	d, err := newDriver().Describe(t.Context())
	if err != nil || d.Name != Name || len(d.Steps) != 7 {
		t.Errorf("got %+v, error %v", d, err)
	}
}
