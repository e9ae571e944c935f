// Package embeddedredis provides a Redis for operators who do not run their own. [Start] runs a redis-server with a
// unix socket in the data directory. [Memory] runs a Redis in this process, which loses its data when the process ends.
//
// The package does not depend on the keys and streams of the relay. It does not use a Redis client library, because it
// needs only a few commands.
package embeddedredis

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/hubrelay/hubrelay/internal/procpipe"
)

// outputTimeout limits the time to read the remaining output of a server that has ended.
const outputTimeout = 100 * time.Millisecond

// redisProcess is one run of redis-server.
type redisProcess struct {
	pid       int
	started   time.Time
	exited    chan struct{}
	lastLines lineRing
}

// launchServer starts redis-server and waits until it responds.
func (s *Server) launchServer(ctx context.Context) (*redisProcess, error) {
	binary, err := FindBinary()
	if err != nil {
		return nil, err
	}
	if err := os.Remove(s.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier server: %w", err)
	}
	// redis-server creates files that everyone may read, and a child cannot be started with another umask.
	cmd := exec.Command("/bin/sh", slices.Concat([]string{"-c", `umask 077 && exec "$0" "$@"`, binary}, s.buildArgs())...)
	cmd.Dir = s.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TZ=" + os.Getenv("TZ"), "LC_ALL=C"}
	// Ctrl-C in a terminal signals the whole foreground process group, but the server must outlive the shutdown.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, childEnd, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start redis-server: %w", err)
	}
	cmd.Stdout, cmd.Stderr = childEnd, childEnd
	err = cmd.Start()
	_ = childEnd.Close()
	if err != nil {
		_ = out.Close()
		return nil, fmt.Errorf("start redis-server: %w", err)
	}
	p := &redisProcess{pid: cmd.Process.Pid, started: time.Now(), exited: make(chan struct{})}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		p.copyLog(procpipe.NewReader(out), s.log)
	}()
	go func() {
		defer close(p.exited)
		_, _ = cmd.Process.Wait()
		// A forked child that rewrites the append-only file may keep the pipe open for a long time.
		_ = out.SetReadDeadline(time.Now().Add(outputTimeout))
		<-copied
		_ = out.Close()
	}()
	if err := s.awaitReady(ctx, p); err != nil {
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
		<-p.exited
		return nil, err
	}
	return p, nil
}

// FindBinary returns the path of the server that Start would run, or [ErrNoBinary].
func FindBinary() (string, error) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNoBinary
}

func (s *Server) buildArgs() []string {
	return []string{
		"--port", "0", "--unixsocket", s.socket, "--unixsocketperm", "700", "--protected-mode", "yes",
		"--dir", s.dir, "--pidfile", filepath.Join(s.dir, "redis.pid"), "--daemonize", "no",
		"--appendonly", "yes", "--appendfsync", "everysec", "--aof-load-truncated", "yes",
		"--save", "", "--maxmemory", strconv.FormatInt(s.maxMemory, 10), "--maxmemory-policy", "noeviction",
		"--loglevel", "notice",
	}
}

func (s *Server) awaitReady(ctx context.Context, p *redisProcess) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-p.exited:
			return fmt.Errorf("redis-server failed to start in %s: %s", s.dir, p.lastLines.String())
		case <-ctx.Done():
			return fmt.Errorf("redis-server did not respond on %s: %w", s.socket, ctx.Err())
		case <-tick.C:
		}
		if reply, err := call(ctx, s.socket, "PING"); err == nil || strings.HasPrefix(reply, "LOADING") {
			return nil
		}
	}
}

// adoptRunning returns the running server of the directory. If there is none, it returns nil.
func (s *Server) adoptRunning(ctx context.Context) (*redisProcess, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	dir, err := call(ctx, s.socket, "CONFIG", "GET", "dir")
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) {
		return nil, s.stopOrphan()
	}
	if err := checkSocketOwner(s.socket); err != nil {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("adopt the redis-server at %s: %w", s.socket, err)
	}
	if _, dir, _ = strings.Cut(dir, "\n"); dir != s.dir {
		return nil, fmt.Errorf("the socket %s belongs to the redis-server of another directory, %s", s.socket, dir)
	}
	info, err := call(ctx, s.socket, "INFO", "server")
	if err != nil {
		return nil, fmt.Errorf("read the process ID of the running redis-server: %w", err)
	}
	pid := 0
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, "process_id:"); ok {
			pid, _ = strconv.Atoi(strings.TrimSpace(value))
		}
	}
	if pid <= 1 {
		return nil, errors.New("read the process ID of the running redis-server: it is missing")
	}
	if _, err := call(ctx, s.socket, "CONFIG", "SET", "maxmemory", strconv.FormatInt(s.maxMemory, 10)); err != nil {
		return nil, fmt.Errorf("set the memory limit of the running redis-server: %w", err)
	}
	p := &redisProcess{pid: pid, started: time.Now(), exited: make(chan struct{})}
	go p.watchSocket(s.socket)
	s.log.Info("adopted the redis-server of an earlier run", "pid", pid)
	return p, nil
}

// watchSocket closes exited when the server has ended, which closes its connections. The server is not a child of
// this process.
func (p *redisProcess) watchSocket(socket string) {
	defer close(p.exited)
	for {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
		// A server that is shutting down still accepts connections, so wait before the next one.
		timer := time.NewTimer(10 * time.Millisecond)
		<-timer.C
	}
}

// stopOrphan stops a server of this directory whose socket was removed. Two servers would destroy their append-only
// file. It identifies the server by its pid file and working directory, so it needs /proc.
func (s *Server) stopOrphan() error {
	text, err := os.ReadFile(filepath.Join(s.dir, "redis.pid"))
	if err != nil {
		return nil
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 || !s.ownsProcess(pid) {
		return nil
	}
	s.log.Warn("stopping the redis-server of an earlier run because its socket is missing", "pid", pid)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		_ = syscall.Kill(pid, sig)
		for deadline := time.Now().Add(termTimeout); time.Now().Before(deadline); {
			if !s.ownsProcess(pid) {
				return nil
			}
			timer := time.NewTimer(10 * time.Millisecond)
			<-timer.C
		}
	}
	return fmt.Errorf("process %d uses %s and does not stop: kill it", pid, s.dir)
}

func (s *Server) ownsProcess(pid int) bool {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	cwd, err := os.Readlink(filepath.Join(proc, "cwd"))
	if err != nil || cwd != s.dir {
		return false
	}
	name, err := os.ReadFile(filepath.Join(proc, "comm"))
	return err == nil && strings.Contains(string(name), "-server")
}

// copyLog copies the log of the server to log until it ends.
func (p *redisProcess) copyLog(out io.Reader, log *slog.Logger) {
	scanner := bufio.NewScanner(out)
	scanner.Buffer(make([]byte, 0, 4096), 1<<20)
	for scanner.Scan() {
		text, level := parseLogLine(scanner.Text())
		if text == "" {
			continue
		}
		p.lastLines.add(text)
		log.Log(context.Background(), level, "redis-server", "line", text)
	}
	_, _ = io.Copy(io.Discard, out) // a line that exceeds the buffer must not block the server
}

// parseLogLine parses "pid:role date time level text". Redis uses the level "#" for warnings, but also for messages
// at startup and shutdown, and for hints about kernel settings, which docs/sizing.md covers.
func parseLogLine(line string) (text string, level slog.Level) {
	head, rest, ok := strings.Cut(line, " # ")
	if ok && isLogHead(head) {
		for _, harmless := range []string{
			"oO0", "Redis version", "Configuration loaded", "Server initialized", "User requested shutdown",
			"Redis is now ready to exit", "WARNING ",
		} {
			if strings.HasPrefix(rest, harmless) {
				return rest, slog.LevelDebug
			}
		}
		return rest, slog.LevelWarn
	}
	for _, mark := range []string{" * ", " - ", " . "} {
		if head, rest, ok := strings.Cut(line, mark); ok && isLogHead(head) {
			return rest, slog.LevelDebug
		}
	}
	line = strings.TrimSpace(line)
	if strings.ContainsAny(line, "`|'_") && !strings.ContainsAny(line, ":") {
		return "", slog.LevelDebug // the logo
	}
	return line, slog.LevelDebug
}

func isLogHead(s string) bool {
	pid, _, ok := strings.Cut(s, ":")
	_, err := strconv.Atoi(pid)
	return ok && err == nil
}

const maxLastLines = 6

// lineRing contains the last lines of a log.
type lineRing struct {
	mu   sync.Mutex
	last []string
}

func (l *lineRing) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.last) == maxLastLines {
		l.last = append(l.last[:0], l.last[1:]...)
	}
	l.last = append(l.last, line)
}

// String joins the lines with "; ".
func (l *lineRing) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.last, "; ")
}

// DefaultMaxMemory returns half of the memory of the machine, or of the memory limit of its cgroup, in bytes. If
// neither is known, it returns 0, which means no limit.
func DefaultMaxMemory() int64 {
	machine, err := memlimit.FromSystem()
	if err != nil {
		machine = 0
	}
	if limit, err := memlimit.FromCgroup(); err == nil && limit > 0 && (machine == 0 || limit < machine) {
		machine = limit
	}
	return int64(machine / 2)
}
