package directory

import (
	"bytes"
	"errors"
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// killWithAgent makes the kernel kill the command when its agent is killed, because only an agent can stop a command.
func killWithAgent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// closeOnExec prevents started programs from inheriting open files, including those that this process inherited.
func closeOnExec() { _ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) }

// hasExited reports whether a child has ended. It queries the kernel, and leaves the exit status to the goroutine that
// closes done.
func hasExited(pid int, _ <-chan struct{}) bool {
	var end unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &end, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return end.Signo != 0 || errors.Is(err, unix.ECHILD) // no longer a child: its status was read
}

// groupAlive reports whether a process of the group is running. Zombies do not count: orphans wait for process 1, which
// takes seconds in some containers and forever in others.
func groupAlive(group int) bool {
	if syscall.Kill(-group, 0) != nil {
		return false
	}
	proc, err := os.Open("/proc")
	if err != nil {
		return true
	}
	defer func() { _ = proc.Close() }()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return true
	}
	seen := false
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue // the process has ended
		}
		// After the program's name, which may contain any character, follow state, parent and group.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 3 || string(fields[2]) != strconv.Itoa(group) {
			continue
		}
		seen = true
		if state := fields[0][0]; state != 'Z' && state != 'X' {
			return true
		}
	}
	return !seen && syscall.Kill(-group, 0) == nil // /proc may hide processes
}

// listAgents lists the agents among all processes that /proc shows.
func listAgents() ([]Agent, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer func() { _ = proc.Close() }()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var list []Agent
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if a, ok := agentAt(pid); ok {
				list = append(list, a)
			}
		}
	}
	return list, nil
}

// agentAt returns the agent with a PID. A zombie has no arguments, so it does not count as an agent.
func agentAt(pid int) (Agent, bool) {
	dir := "/proc/" + strconv.Itoa(pid)
	line, err := os.ReadFile(dir + "/cmdline")
	if err != nil {
		return Agent{}, false
	}
	a, ok := parseAgent(strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00"))
	info, err := os.Stat(dir)
	if !ok || err != nil {
		return Agent{}, false
	}
	a.PID, a.Started = pid, info.ModTime()
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		a.uid = int(stat.Uid)
	}
	return a, isInOurNamespace(dir)
}

// isInOurNamespace reports whether a process is in the PID namespace of this process. In another container its paths
// refer to other directories.
func isInOurNamespace(dir string) bool {
	own, err1 := os.Readlink("/proc/self/ns/pid")
	other, err2 := os.Readlink(dir + "/ns/pid")
	return err1 != nil || err2 != nil || own == other
}
