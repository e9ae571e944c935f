package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// A plugin that cannot be started fails each delivery at once with a clear error, is tried again, and runs once it is
// fixed.
func TestHost_RetriesFailedStart(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	plain := filepath.Join(folder, "plain")
	script := filepath.Join(folder, "script")
	if err := errors.Join(os.WriteFile(plain, nil, 0o600),
		os.WriteFile(script, []byte("no program"), 0o700)); err != nil {
		t.Fatal(err)
	}
	command := func(list ...string) func(*Options) { return func(o *Options) { o.Command = list } }
	soon := func(o *Options) { o.StartupTimeout = 300 * time.Millisecond }
	for name, c := range map[string]struct {
		mode   string
		change func(*Options)
		want   []string
	}{
		"missing": {
			"", command(filepath.Join(folder, "missing")),
			[]string{"missing does not exist", "build it"},
		},
		"not in PATH":    {"", command("no-such-program-of-ours"), []string{"is not in PATH"}},
		"not executable": {"", command(plain), []string{"plain is not executable", "chmod"}},
		"a folder":       {"", command(folder + "/"), []string{"is a directory"}},
		"no program":     {"", command(script), []string{"is not a program for this machine"}},
		"wrong hash": {
			"sdk", func(o *Options) { o.SHA256 = strings.Repeat("ab", 32) },
			[]string{"has the SHA-256", "sha256 pins abab"},
		},
		"wrong file": {
			"sdk", func(o *Options) { o.Files = map[string]string{script: strings.Repeat("ab", 32)} },
			[]string{"script has the SHA-256", "files pins"},
		},
		"missing file": {
			"sdk",
			func(o *Options) {
				o.Files = map[string]string{folder + "/x": strings.Repeat("ab",
					32)}
			},
			[]string{"to compare it with files"},
		},
		"version":   {"version", nil, []string{"the plugin has version 7 of the protocol and this relay version 1"}},
		"garbage":   {"garbage", nil, []string{`wrote "Hello, I am a plugin!"`, "handshake"}},
		"silence":   {"silent", soon, []string{"did not write its handshake within 300ms (startup_timeout)"}},
		"no stdout": {"closed", nil, []string{"closed its standard output, before its handshake"}},
		"elsewhere": {"elsewhere", nil, []string{"listens on unix /run/docker.sock"}},
		"unknown key": {
			"sdk", func(o *Options) { o.Config = json.RawMessage(`{"reprot":1}`) },
			[]string{"rejects its configuration", `reprot is an unknown key; did you mean report?`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, c.mode, c.change)
			err := r.deliver("a", 1, "ok", startPatience)
			wants(t, err, relay.OutcomeRetry, append(c.want, "the plugin is not running, next start at")...)
			if !relay.IsPostponed(err) {
				t.Error("the attempt counts, although the plugin got nothing")
			}
			if s := r.Status(); s.State != StateFailed && s.State != StateStarting {
				t.Errorf("%+v", s)
			}
			r.until("a second start", func() bool { return r.count(EventNotStarted) >= 2 })
			if r.count(EventExited)+r.count(EventGaveUp)+r.count(EventStarted) != 0 {
				t.Errorf("events %v", r.events)
			}
			line, _, _ := strings.Cut(r.log.String(), "\n")
			if !strings.Contains(line, `"level":"ERROR"`) || !strings.Contains(line, "plugin is not running") {
				t.Errorf("the first line of the log is %s", line)
			}
		})
	}
}

// After the operator replaces the program, no manual restart is needed.
func TestHost_StartsReplacedProgram(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "plugin")
	r := newRig(t, "", func(o *Options) { o.Command = []string{name, "sdk"} })
	wants(t, r.deliver("a", 1, "ok", 20*time.Second), relay.OutcomeRetry, "does not exist")
	if err := os.Symlink(os.Args[0], name); err != nil {
		t.Fatal(err)
	}
	r.until("it runs", func() bool { return r.Status().State == StateRunning })
	r.mustDeliver("b")
}

func TestHost_ChecksPins(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	one := sha256.Sum256([]byte("one"))
	r := newRig(t, "sdk", func(o *Options) {
		o.SHA256, o.Files = hex.EncodeToString(sum[:]), map[string]string{script: hex.EncodeToString(one[:])}
	})
	r.mustDeliver("a")
	// The pins hold at every start.
	if err := os.WriteFile(script, []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	wants(t, r.deliver("b", 1, "die", time.Minute), relay.OutcomeRetry, "exited with status 4")
	r.until("the pin is broken", func() bool { return r.count(EventNotStarted) > 0 })
	wants(t, r.deliver("c", 1, "ok", time.Minute), relay.OutcomeRetry, "script has the SHA-256")
}

// A pin of a named pipe must not block the start of the daemon.
func TestCheckPins_RejectsOtherKindsOfFiles(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{pipe, os.DevNull, t.TempDir()} {
		err := CheckPins("", "", map[string]string{name: strings.Repeat("00", sha256.Size)})
		if err == nil || !strings.Contains(err.Error(), "it is not a regular file") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Replacing or overwriting a program between its check and its start has no effect.
func TestOpenProgram_RunsWhatItChecked(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(t *testing.T, program string, hostile []byte){
		"overwritten": func(t *testing.T, program string, hostile []byte) {
			if err := os.WriteFile(program, hostile, 0o700); err != nil {
				t.Fatal(err)
			}
		},
		"replaced": func(t *testing.T, program string, hostile []byte) {
			if err := os.WriteFile(program+".new", hostile, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(program+".new", program); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			content := map[string][]byte{}
			for _, program := range []string{"/bin/echo", "/bin/false"} {
				text, err := os.ReadFile(program)
				if err != nil {
					t.Fatal(err)
				}
				content[program] = text
			}
			program := filepath.Join(t.TempDir(), "plugin")
			if err := os.WriteFile(program, content["/bin/echo"], 0o700); err != nil {
				t.Fatal(err)
			}
			sum := sha256.Sum256(content["/bin/echo"])
			o := &Options{Command: []string{program}, SHA256: hex.EncodeToString(sum[:])}
			checked, err := o.openProgram(program)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = checked.Close() }()
			replace(t, program, content["/bin/false"])
			cmd := exec.Command(program, "the checked program")
			runContent(cmd, checked)
			if out, err := cmd.Output(); err != nil || string(out) != "the checked program\n" {
				t.Errorf("got %q, %v", out, err)
			}
		})
	}
}

// Attempts in flight fail when the plugin dies, and can be retried with the same ID as the next attempt.
func TestHost_RestartsAfterCrash(t *testing.T) {
	t.Parallel()
	for topic, want := range map[string]string{
		"die":   "the plugin exited with status 4",
		"crash": "the plugin exited with status 2: panic: outside of the handler",
	} {
		t.Run(topic, func(t *testing.T) {
			r := newRig(t, "sdk", nil)
			r.mustDeliver("a")
			others := make(chan error)
			go func() { others <- r.deliver("b", 1, "hang", time.Minute) }()
			r.until("b has arrived", func() bool { return len(r.lines()) == 2 })
			wants(t, r.deliver("c", 1, topic, time.Minute), relay.OutcomeRetry, want)
			wants(t, <-others, relay.OutcomeRetry, want)
			if err := r.deliver("b", 2, "ok", startPatience); err != nil {
				t.Error(err)
			}
			if r.count(EventExited) != 1 || r.count(EventStarted) != 2 {
				t.Errorf("events %v", r.events)
			}
		})
	}
}

// A plugin that crashes repeatedly is given up. Resuming the sink starts it again.
func TestHost_GivesUpAfterCrashes(t *testing.T) {
	t.Parallel()
	r := newRig(t, "exit", func(o *Options) { o.MaxCrashes = 3 })
	wants(t, r.deliver("a", 1, "ok", time.Minute), relay.OutcomeGone, "crashed too often",
		"exited with status 3 before it was ready: no database", "resume the sink")
	if r.count(EventExited) != 4 || r.count(EventGaveUp) != 1 || r.Status().State != StateGaveUp {
		t.Errorf("events %v, %+v", r.events, r.Status())
	}
	r.mu.Lock()
	r.events = map[Event]int{}
	r.mu.Unlock()
	r.Host.mu.Lock()
	r.gaveUp.at = time.Now().Add(-retryAfterGiveUp)
	r.Host.mu.Unlock()
	wants(t, r.deliver("c", 1, "ok", time.Minute), relay.OutcomeGone)
	if n := r.count(EventExited); n != 2 {
		t.Errorf("%d more crashes until it was given up again, want 2", n)
	}
	if n := strings.Count(r.log.String(), "the next delivery disables its sink, which keeps its backlog"); n != 2 {
		t.Errorf("said %d times that it was given up", n)
	}
}

// A node without deliveries starts its plugin again, too, or it would stay failed there.
func TestHost_ResumeStartsWithoutDelivery(t *testing.T) {
	t.Parallel()
	repaired := filepath.Join(t.TempDir(), "repaired")
	r := newRig(t, "repairable", func(o *Options) {
		o.Command = append(o.Command, repaired)
		o.MaxCrashes, o.MaxBackoff = 1, o.Backoff
	})
	r.Resume() // nothing happens before it was given up
	r.Start()
	r.until("it is given up", func() bool { return r.Status().State == StateGaveUp })
	if err := os.WriteFile(repaired, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.Resume()
	if s := r.Status(); s.Reason != nil {
		t.Errorf("got %+v, want no reason of a failure", s)
	}
	r.until("it runs", func() bool { return r.Status().State == StateRunning })
}

// The exits of a plugin that works on other nodes no longer count after it was repaired on this node.
func TestHost_ForgetsCrashesBeforeRepair(t *testing.T) {
	t.Parallel()
	repaired := filepath.Join(t.TempDir(), "repaired")
	r := newRig(t, "repairable", func(o *Options) {
		o.Command = append(o.Command, repaired)
		o.MaxCrashes, o.MaxBackoff, o.ElsewhereGrace = 2, o.Backoff, time.Hour
		o.WorksElsewhere = func(context.Context) (bool, error) { return true, nil }
	})
	r.Start()
	r.until("five starts", func() bool { return r.count(EventExited) >= 5 })
	if err := os.WriteFile(repaired, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.mustDeliver("a")
	first := r.Status().PID
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.until("it runs again or is given up", func() bool {
		s := r.Status()
		return s.State == StateRunning && s.PID != first || s.State == StateGaveUp
	})
	if s := r.Status(); s.State != StateRunning {
		t.Errorf("events %v, %+v", r.events, s)
	}
}

// A plugin that exits before it is ready is not given up while it works on other nodes, because this would disable the sink
// for them.
func TestHost_KeepsStartingWhileOthersWork(t *testing.T) {
	t.Parallel()
	var works atomic.Bool
	works.Store(true)
	var lastWorked atomic.Int64 // Unix time in nanoseconds
	const grace = 3 * time.Second
	r := newRig(t, "exit", func(o *Options) {
		o.MaxCrashes, o.MaxBackoff, o.ElsewhereGrace = 1, o.Backoff, grace
		o.WorksElsewhere = func(context.Context) (bool, error) {
			if !works.Load() {
				return false, nil
			}
			lastWorked.Store(time.Now().UnixNano())
			return true, nil
		}
	})
	r.Start()
	r.until("five starts", func() bool { return r.count(EventExited) >= 5 })
	if s := r.Status(); r.count(EventGaveUp) != 0 || s.State == StateGaveUp {
		t.Errorf("events %v, %+v", r.events, s)
	}
	works.Store(false)
	r.until("it is given up", func() bool { return r.count(EventGaveUp) == 1 })
	if after := time.Since(time.Unix(0, lastWorked.Load())); after < grace {
		t.Errorf("it was given up %s after it worked elsewhere, want %s", after, grace)
	}
}

// A handler that panics has failed one attempt.
func TestHost_PanicFailsOneAttempt(t *testing.T) {
	t.Parallel()
	r := newRig(t, "sdk", nil)
	err := r.deliver("a", 1, "panic", time.Minute)
	wants(t, err, relay.OutcomeRetry, "the plugin's handler panicked (string)")
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("%q shows the value of the panic", err)
	}
	r.mustDeliver("b")
	r.until("the panic to be logged",
		func() bool { return strings.Contains(r.log.String(), `"plugin panicked"`) })
	if r.count(EventStarted) != 1 {
		t.Errorf("events %v", r.events)
	}
}

// Acks settle what they name, once, whatever else comes.
func TestHost_IgnoresUnknownAcks(t *testing.T) {
	t.Parallel()
	r := newRig(t, "strange", nil)
	for i := range 3 {
		wants(t, r.deliver(strconv.Itoa(i), 1, "ok", startPatience), relay.OutcomePermanent, "the one that counts")
	}
	r.until("they were counted", func() bool { return r.count(EventUnknownAck) == 12 })
	if r.Status().State != StateRunning {
		t.Errorf("%+v", r.Status())
	}
}

// A message that is too large fails the attempts of its plugin, which is started again.
func TestHost_RejectsLargeMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t, "strange", nil)
	if err := r.deliver("a", 1, "large", startPatience); err == nil || !strings.Contains(err.Error(), "larger than max") {
		t.Errorf("got %.300v, want an error about the size", err)
	}
	wants(t, r.deliver("b", 1, "ok", startPatience), relay.OutcomePermanent, "the one that counts")
}

// A plugin that acknowledges more and more attempts that are not in progress is started again.
func TestHost_LimitsUnknownAcks(t *testing.T) {
	t.Parallel()
	r := newRig(t, "strange", nil)
	if err := r.deliver("a", 1, "unknown", startPatience); err == nil || !strings.Contains(err.Error(), "not in progress") {
		t.Errorf("got %.300v, want an error about unknown acknowledgments", err)
	}
	wants(t, r.deliver("b", 1, "ok", startPatience), relay.OutcomePermanent, "the one that counts")
}

func TestHost_LimitsOutput(t *testing.T) {
	t.Parallel()
	r := newRig(t, "sdk", nil)
	if err := r.deliver("a", 1, "flood", time.Minute); err != nil {
		t.Fatal(err)
	}
	r.until("lines were left out", func() bool { return r.count(EventOutputCut) > 10_000 })
	r.mustDeliver("b")
	if size := len(r.log.String()); size > 1<<20 {
		t.Errorf("the log has %d bytes", size)
	}
}

// A plugin that answers nothing is killed some time after its attempts should have ended.
func TestHost_KillsHungPlugin(t *testing.T) {
	t.Parallel()
	r := newRig(t, "sdk", func(o *Options) { o.HangTimeout = 15 * time.Second })
	r.mustDeliver("a")
	r.deliverUntilSent("b", "deaf")
	wants(t, r.deliver("b", 1, "deaf", time.Minute), relay.OutcomeRetry,
		"has not yet responded to an earlier call")
	r.until("it was killed", func() bool { return r.count(EventHung) == 1 })
	r.until("it runs again", func() bool { return r.count(EventStarted) == 2 })
	r.mustDeliver("c")
	if !strings.Contains(r.log.String(), "hang_timeout") {
		t.Error("the log does not say why")
	}
}

// A process that stands still does not respond to its health check, and Kill of go-plugin would wait for it for ever.
func TestHost_KillsSuspendedProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t, "sdk", func(o *Options) { o.HealthInterval, o.HealthTimeout = 50*time.Millisecond, 2*time.Second })
	r.mustDeliver("a")
	answer := make(chan error)
	go func() { answer <- r.deliver("b", 1, "hang", time.Minute) }()
	r.until("b has arrived", func() bool { return len(r.lines()) == 2 })
	r.signal(syscall.SIGSTOP)
	wants(t, <-answer, relay.OutcomeRetry, "no response to 2 health checks within 2s each, the plugin was killed")
	r.mustDeliver("c")
	if r.count(EventHung) != 1 {
		t.Errorf("events %v", r.events)
	}
}

// The end of the daemon does not wait for a plugin that stands still.
func TestHost_CloseKillsSuspendedProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t, "sdk", nil)
	r.mustDeliver("a")
	pid := r.signal(syscall.SIGSTOP)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r.until("the process is gone", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
	if r.count(EventKilled) != 1 {
		t.Errorf("events %v", r.events)
	}
}

func TestHost_LimitsMemory(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("this system has no prlimit")
	}
	r := newRig(t, "sdk", func(o *Options) { o.MemoryLimit = 1 << 30 })
	r.mustDeliver("a")
	wants(t, r.deliver("b", 1, "grow", time.Minute), relay.OutcomeRetry, "the plugin exited",
		"memory_limit is 1073741824 bytes")
	r.mustDeliver("c")
}

// Nothing of the daemon's environment reaches the plugin, but what it is given.
func TestHost_PassesOnlyConfiguredEnvironment(t *testing.T) {
	t.Setenv("DAEMON_SECRET", "s3cret")
	r := newRig(t, "environment", func(o *Options) { o.MaxCrashes, o.Env = 1, []string{"GIVEN=yes"} })
	wants(t, r.deliver("a", 1, "ok", time.Minute), relay.OutcomeGone)
	if log := r.log.String(); strings.Contains(log, "s3cret") || strings.Contains(log, "PATH=") ||
		!strings.Contains(log, "GIVEN=yes") {
		t.Errorf("the environment is %s", log)
	}
}

// After a kill -9 of the daemon no plugin is left, and the next start removes its socket.
func TestHost_PluginEndsWithKilledDaemon(t *testing.T) {
	t.Parallel()
	root := shortFolder(t)
	parent := newRig(t, "parent", func(o *Options) {
		o.Command = append(o.Command, root)
		o.StartupTimeout = time.Minute
	})
	parent.Start()
	var child int
	parent.until("the child runs", func() bool {
		text, err := os.ReadFile(filepath.Join(root, "pid"))
		child, _ = strconv.Atoi(string(text))
		return err == nil
	})
	folders := func() int {
		list, err := filepath.Glob(filepath.Join(root, "hubrelay-plugins-*", "*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	if n := folders(); n != 1 {
		t.Fatalf("%d socket folders while it runs", n)
	}
	if err := parent.Close(); err != nil { // it has not got ready, so it is killed
		t.Fatal(err)
	}
	parent.until("the child is gone", func() bool { return gone(child) })
	if n := folders(); n != 1 {
		t.Fatalf("%d socket folders after the kill", n)
	}
	next := newRig(t, "sdk", func(o *Options) { o.SocketRoot = root })
	next.mustDeliver("a")
	if n := folders(); n != 1 {
		t.Errorf("%d socket folders with the next one", n)
	}
	if err := next.Close(); err != nil {
		t.Fatal(err)
	}
	if n := folders(); n != 0 {
		t.Errorf("%d socket folders at the end", n)
	}
}

// gone reports whether a process has ended. A zombie counts as ended.
func gone(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(text), ") Z ")
}
