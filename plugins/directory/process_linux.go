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

// killWithAgent kills the command when its keeper is killed: what runs has a keeper, by which it can be stopped.
func killWithAgent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// closeOnExec sees to it that a program we start gets no file of ours, those included that we were started with.
func closeOnExec() { _ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) }

// hasExited tells whether our child has ended. The kernel is asked, and leaves the end to whoever waits for it and closes done.
func hasExited(pid int, _ <-chan struct{}) bool {
	var end unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &end, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return end.Signo != 0 || errors.Is(err, unix.ECHILD) // no child any more: it was waited for
}

// groupAlive tells whether a process of the group is at work. Those that have ended and were not waited for are not: whose
// parent is gone waits for process 1, which takes seconds in some containers, and for ever in others.
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
			continue // it is gone
		}
		// Behind the program's name, which may hold anything: its state, its parent and its group.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 3 || string(fields[2]) != strconv.Itoa(group) {
			continue
		}
		seen = true
		if state := fields[0][0]; state != 'Z' && state != 'X' {
			return true
		}
	}
	return !seen && syscall.Kill(-group, 0) == nil // a /proc that hides processes tells nothing
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

// agentAt returns the agent with a PID. A process that has ended and was not waited for has no arguments, so it is none.
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

// isInOurNamespace reports whether a process is not in another container, where its paths mean other directories.
func isInOurNamespace(dir string) bool {
	own, err1 := os.Readlink("/proc/self/ns/pid")
	other, err2 := os.Readlink(dir + "/ns/pid")
	return err1 != nil || err2 != nil || own == other
}
