package directory

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// A zombie does not keep its group alive.
func TestGroupAlive_IgnoresZombies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		argv []string
		runs bool
	}{
		"ended command":   {[]string{"true"}, false},
		"running command": {[]string{"sleep", "1000"}, true},
		"running child":   {[]string{"sh", "-c", "(sleep 1000) & kill -KILL $$"}, true},
	} {
		cmd := exec.Command(c.argv[0], c.argv[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		group := cmd.Process.Pid
		(&rig{t: t}).until(name, func() bool { return groupAlive(group) == c.runs })
		if err := syscall.Kill(-group, 0); err != nil {
			t.Errorf("%s: the group has no process, so the test proves nothing: %v", name, err)
		}
		_ = syscall.Kill(-group, syscall.SIGKILL)
		_ = cmd.Wait()
	}
}

// If an agent is delayed until its command has ended, the command does not count as started, even if it ran long enough
// by the clock.
func TestAgent_EndedCommandIsNotStable(t *testing.T) {
	r := newRig(t, "/bin/sh", "-c", `echo $$ > volumes/data/pid; exit 3`)
	t.Chdir(filepath.Join(r.a, "i"))
	out, err := openOutput(fileOutput, maxOutput)
	must(t, err)
	defer func() { must(t, out.Close()) }()
	// Writing the state file fails, which delays the agent after the start of the command.
	must(t, os.Mkdir(fileAgentState, 0o700))
	out.mu.Lock()
	go func() {
		defer out.mu.Unlock()
		var pid int
		r.until("the command has written its PID", func() bool {
			pid, _ = strconv.Atoi(strings.TrimSpace(r.read("i/volumes/data/pid")))
			return pid > 0
		})
		r.until("the command has ended", func() bool { return pid > 0 && !groupAlive(pid) })
	}()
	a := &agent{instanceDir: instanceDir{path: r.a, instance: "i"}, stableAfter: 1, output: out}
	mustEnd, how := a.runCommand(t.Context())
	if mustEnd || how != "ended with exit status 3" || a.state.Stable {
		t.Errorf("got %v, %q, stable %v, want an unstable command with exit status 3", mustEnd, how, a.state.Stable)
	}
}

func TestHasExited(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sleep", "1000")
	must(t, cmd.Start())
	if hasExited(cmd.Process.Pid, nil) {
		t.Error("hasExited returned true for a running process")
	}
	must(t, cmd.Process.Kill())
	(&rig{t: t}).until("hasExited returns true", func() bool { return hasExited(cmd.Process.Pid, nil) })
	_ = cmd.Wait()
	if cmd.ProcessState.String() != "signal: killed" || !hasExited(cmd.Process.Pid, nil) {
		t.Errorf("after Wait: got state %v, want signal: killed", cmd.ProcessState)
	}
}
