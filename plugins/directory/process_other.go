//go:build !linux

package directory

import (
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// killWithAgent does nothing on this system: a command outlives an agent that is killed.
func killWithAgent(*syscall.SysProcAttr) {}

// closeOnExec does nothing on this system, because Go already sets close-on-exec for the files that it opens.
func closeOnExec() {}

// hasExited reports whether a child has ended. It waits briefly for done, because only the goroutine that closes done
// can detect the end.
func hasExited(_ int, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-time.After(stopPollInterval):
		return false
	}
}

// groupAlive reports whether the group has processes, including zombies.
func groupAlive(group int) bool { return syscall.Kill(-group, 0) == nil }

// listAgents lists the agents among the processes in the output of ps.
func listAgents() ([]Agent, error) { return runPS("-ax") }

func agentAt(pid int) (Agent, bool) {
	list, err := runPS("-p", strconv.Itoa(pid))
	if err != nil || len(list) != 1 {
		return Agent{}, false
	}
	return list[0], true
}

func runPS(which ...string) ([]Agent, error) {
	out, err := exec.Command("ps", append(which, "-ww", "-o", "pid=,uid=,etime=,command=")...).Output()
	if err != nil {
		return nil, fmt.Errorf("run ps: %w", err)
	}
	var list []Agent
	for line := range strings.Lines(string(out)) {
		if a, ok := parsePSLine(line); ok {
			list = append(list, a)
		}
	}
	return list, nil
}

// parsePSLine reads a line of ps. Only the path of the server may contain spaces.
func parsePSLine(line string) (Agent, bool) {
	fields := strings.Fields(line)
	at := slices.Index(fields, AgentCommand)
	if at < 4 || len(fields) < at+1+agentArgs {
		return Agent{}, false
	}
	last := len(fields) - agentArgs + 1
	args := append([]string{fields[3], AgentCommand, strings.Join(fields[at+1:last], " ")}, fields[last:]...)
	a, ok := parseAgent(args)
	pid, err := strconv.Atoi(fields[0])
	uid, e := strconv.Atoi(fields[1])
	if !ok || err != nil || e != nil {
		return Agent{}, false
	}
	a.PID, a.uid, a.Started = pid, uid, time.Now().Add(-parseElapsed(fields[2]))
	return a, true
}

// parseElapsed reads [[days-]hours:]minutes:seconds.
func parseElapsed(text string) time.Duration {
	days, clock, found := strings.Cut(text, "-")
	if !found {
		days, clock = "0", text
	}
	parts := strings.Split("0:0:"+clock, ":")
	number := func(text string) int {
		n, _ := strconv.Atoi(text)
		return n
	}
	last := len(parts) - 1
	hours := 24*number(days) + number(parts[last-2])
	return time.Duration((hours*60+number(parts[last-1]))*60+number(parts[last])) * time.Second
}
