package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTimeOf returns the user and system CPU time of a process. It reads the clock of clock_getcpuclockid(3), because
// /proc has a resolution of only 10 ms.
func cpuTimeOf(pid int) (time.Duration, error) {
	const scheduler = 2 // the kind of clock, in the lowest three bits
	var now unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|scheduler, &now); err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	return time.Duration(now.Nano()), nil
}

// measureCPU returns the CPU time that a process used during do.
func measureCPU(pid int, do func() error) (time.Duration, error) {
	before, err := cpuTimeOf(pid)
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := cpuTimeOf(pid)
	return after - before, err
}

// ownCPUTime returns the CPU time of this process.
func ownCPUTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// residentMiB returns the resident memory of a process.
func residentMiB(pid int) (float64, error) { return memoryMiB(pid, "VmRSS") }

// memoryMiB reads a line of the status of a process: VmRSS is the resident memory, VmHWM its peak.
func memoryMiB(pid int, line string) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(data), line+":")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0, errors.New("the system does not report the memory of a process")
	}
	kib, err := strconv.ParseFloat(fields[0], 64)
	return kib / 1024, err
}

// childOf returns the only child process of a process.
func childOf(pid int) (int, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && len(text) > 0 {
			return strconv.Atoi(strings.TrimSpace(string(text)))
		}
	}
	return 0, fmt.Errorf("process %d has no child", pid)
}
