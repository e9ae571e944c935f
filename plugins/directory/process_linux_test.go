package directory

import (
	"os/exec"
	"syscall"
	"testing"
)

// A process that has ended, and for which nobody waits, does not keep its group from counting as stopped.
func TestZombiesDoNotRun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		argv []string
		runs bool
	}{
		"ended":   {[]string{"true"}, false},
		"works":   {[]string{"sleep", "1000"}, true},
		"a child": {[]string{"sh", "-c", "(sleep 1000) & kill -KILL $$"}, true},
	} {
		cmd := exec.Command(c.argv[0], c.argv[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		group := cmd.Process.Pid
		(&rig{t: t}).until(name, func() bool { return groupRuns(group) == c.runs })
		if err := syscall.Kill(-group, 0); err != nil {
			t.Errorf("%s: %v, so that this proves nothing", name, err)
		}
		_ = syscall.Kill(-group, syscall.SIGKILL)
		_ = cmd.Wait()
	}
}
