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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hubrelay/hubrelay/internal/procpipe"
)

// redisProcess is one run of redis-server.
type redisProcess struct {
	pid       int
	started   time.Time
	exited    chan struct{}
	lastLines lineRing
}

// launch starts redis-server and waits until it answers.
func (s *Server) launch(ctx context.Context) (*redisProcess, error) {
	binary, err := FindBinary()
	if err != nil {
		return nil, err
	}
	if err := os.Remove(s.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier server: %w", err)
	}
	cmd := exec.Command(binary, s.arguments()...)
	cmd.Dir = s.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TZ=" + os.Getenv("TZ"), "LC_ALL=C"}
	// Ctrl-C in a terminal reaches the whole foreground group: the server must outlive our own shutdown.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, theirs, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start redis-server: %w", err)
	}
	cmd.Stdout, cmd.Stderr = theirs, theirs
	err = cmd.Start()
	_ = theirs.Close()
	if err != nil {
		_ = out.Close()
		return nil, fmt.Errorf("start redis-server: %w", err)
	}
	p := &redisProcess{pid: cmd.Process.Pid, started: time.Now(), exited: make(chan struct{})}
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		p.follow(procpipe.NewReader(out), s.log)
	}()
	go func() {
		defer close(p.exited)
		_, _ = cmd.Process.Wait()
		// A forked child that rewrites the append-only file may hold the pipe open for long.
		_ = out.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		<-followed
		_ = out.Close()
	}()
	if err := s.awaitReady(ctx, p); err != nil {
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
		<-p.exited
		return nil, err
	}
	return p, nil
}

// FindBinary returns the server that Start would run, or [ErrNoBinary].
func FindBinary() (string, error) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNoBinary
}

func (s *Server) arguments() []string {
	return []string{
		"--port", "0", "--unixsocket", s.socket, "--unixsocketperm", "700", "--protected-mode", "yes",
		"--dir", s.dir, "--pidfile", filepath.Join(s.dir, "redis.pid"), "--daemonize", "no",
		"--appendonly", "yes", "--appendfsync", "everysec", "--aof-load-truncated", "yes",
		"--save", "", "--maxmemory-policy", "noeviction", "--loglevel", "notice",
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
			return fmt.Errorf("redis-server cannot work in %s: %s", s.dir, p.lastLines.String())
		case <-ctx.Done():
			return fmt.Errorf("redis-server did not answer on %s in time: %w", s.socket, ctx.Err())
		case <-tick.C:
		}
		if reply, err := call(ctx, s.socket, "PING"); err == nil || strings.HasPrefix(reply, "LOADING") {
			return nil
		}
	}
}

// adoptRunning returns the folder's server where one runs already, or nil.
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
		return nil, fmt.Errorf("something holds the socket %s but does not answer as redis-server does: %w", s.socket, err)
	}
	if _, dir, _ = strings.Cut(dir, "\n"); dir != s.dir {
		return nil, fmt.Errorf("the socket %s belongs to a redis-server of another folder, %s", s.socket, dir)
	}
	info, err := call(ctx, s.socket, "INFO", "server")
	if err != nil {
		return nil, fmt.Errorf("ask the running redis-server for its process id: %w", err)
	}
	pid := 0
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, "process_id:"); ok {
			pid, _ = strconv.Atoi(strings.TrimSpace(value))
		}
	}
	if pid <= 1 {
		return nil, errors.New("the running redis-server does not tell its process id")
	}
	p := &redisProcess{pid: pid, started: time.Now(), exited: make(chan struct{})}
	go p.watch(s.socket)
	s.log.Info("took over the redis-server that an earlier run left behind", "pid", pid)
	return p, nil
}

// watch closes exited when the server, which is not our child, has ended: its end closes every connection.
func (p *redisProcess) watch(socket string) {
	defer close(p.exited)
	for {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
		// A server that is shutting down still accepts: do not spin on it.
		timer := time.NewTimer(10 * time.Millisecond)
		<-timer.C
	}
}

// stopOrphan ends a server of this folder whose socket was removed: two on one append-only file would destroy it. It
// knows one by the pid file and the working folder, so it needs /proc.
func (s *Server) stopOrphan() error {
	text, err := os.ReadFile(filepath.Join(s.dir, "redis.pid"))
	if err != nil {
		return nil
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 || !s.ownsProcess(pid) {
		return nil
	}
	s.log.Warn("a redis-server of an earlier run has lost its socket, stopping it", "pid", pid)
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
	return fmt.Errorf("process %d works in %s and does not end: stop it", pid, s.dir)
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

// follow writes the server's log to ours until it ends.
func (p *redisProcess) follow(out io.Reader, log *slog.Logger) {
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
	_, _ = io.Copy(io.Discard, out) // a line beyond the buffer must not block the server
}

// parseLogLine splits "pid:role date time level text". Redis marks a warning with '#', which it also uses for what is
// only notable when it starts and ends, and for its advice on the kernel's settings, which docs/sizing.md gives in
// fewer words.
func parseLogLine(line string) (text string, level slog.Level) {
	head, rest, ok := strings.Cut(line, " # ")
	if ok && isLogHead(head) {
		for _, usual := range []string{
			"oO0", "Redis version", "Configuration loaded", "Server initialized", "User requested shutdown", "Redis is now ready to exit",
			"WARNING ",
		} {
			if strings.HasPrefix(rest, usual) {
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

// lineRing keeps the last few lines of a log.
type lineRing struct {
	mu   sync.Mutex
	last []string
}

func (l *lineRing) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.last) == 6 {
		l.last = append(l.last[:0], l.last[1:]...)
	}
	l.last = append(l.last, line)
}

// String joins the lines by "; ".
func (l *lineRing) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.last, "; ")
}
