// Package redistest starts real redis-server processes for tests, each with its own directory and unix socket.
//
// It does not depend on the keys of hubrelay. Only tests may import it.
package redistest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// logTail is the number of bytes of the log of Redis that a failed test prints.
const logTail = 4 << 10

const startTimeout = time.Minute // long, because a busy disk stalls the append-only file

// Server is a redis-server process. Only the goroutine of the test may call its methods.
type Server struct {
	// Socket is the path of the unix socket.
	Socket string

	tb   testing.TB
	args []string
	log  *os.File

	mu   sync.Mutex
	proc *exec.Cmd
	done chan struct{}
}

// Start runs a redis-server with an append-only file until the test ends. args are options of redis-server, such as
// "--maxmemory", "50mb". Without redis-server the test fails. `make test` installs it.
//
// A killed server loses no acknowledged write: without fsync, Redis writes to the append-only file before it replies,
// and the file survives the process. With the default of Redis, everysec, a write waits while an fsync runs.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	// The path of t.TempDir may exceed the 107 bytes of a unix socket address.
	dir, err := os.MkdirTemp("", "redistest")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	logFile, err := os.Create(filepath.Join(dir, "redis.log"))
	if err != nil {
		tb.Fatal(err)
	}
	if slices.Contains(args, "--cluster-enabled") && !slices.Contains(args, "--cluster-port") {
		args = append(args, "--cluster-port", FreePort(tb)) // the default is 10000 for all servers without a port
	}
	s := &Server{
		Socket: filepath.Join(dir, "redis.sock"),
		tb:     tb,
		log:    logFile,
		args: append([]string{
			"--port", "0", "--unixsocket", filepath.Join(dir, "redis.sock"), "--unixsocketperm", "700",
			"--dir", dir, "--save", "", "--appendonly", "yes", "--appendfsync", "no", "--maxmemory-policy", "noeviction",
		}, args...),
	}
	s.Restart()
	tb.Cleanup(func() {
		if tb.Failed() {
			text, _ := os.ReadFile(logFile.Name())
			tb.Logf("redis-server printed:\n%s", text[max(0, len(text)-logTail):])
		}
		s.Kill()
		_ = logFile.Close()
	})
	return s
}

// URL returns the redis.url of the server.
func (s *Server) URL() string { return "unix://" + s.Socket }

// Kill sends SIGKILL to the server. It does nothing if the server is not running.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return
	}
	_ = s.proc.Process.Kill()
	<-s.done
	s.proc = nil
}

// Signal sends a signal to the server, for example SIGSTOP to make it hang.
func (s *Server) Signal(sig syscall.Signal) {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.proc.Process.Signal(sig); err != nil {
		s.tb.Fatal(err)
	}
}

// Restart kills the server if it is running, starts it with the same data, and returns when it answers.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	s.mu.Lock()
	defer s.mu.Unlock()
	cmd := exec.Command("redis-server", s.args...)
	cmd.Stdout, cmd.Stderr = s.log, s.log
	if err := cmd.Start(); err != nil {
		s.tb.Fatalf("start redis-server (make test installs it): %v", err)
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	s.proc, s.done = cmd, done
	if err := s.awaitReady(done); err != nil {
		s.tb.Fatal(err)
	}
}

func (s *Server) awaitReady(done <-chan struct{}) error {
	deadline := time.Now().Add(startTimeout)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for time.Now().Before(deadline) {
		select {
		case <-done:
			out, _ := os.ReadFile(s.log.Name())
			return fmt.Errorf("redis-server ended during its start:\n%s", out)
		case <-tick.C:
		}
		if s.answersPing() {
			return nil
		}
	}
	return fmt.Errorf("redis-server did not respond within %s on %s", startTimeout, s.Socket)
}

func (s *Server) answersPing() bool {
	conn, err := net.DialTimeout("unix", s.Socket, time.Second)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	buf := make([]byte, 64)
	n, err := conn.Read(buf)
	return err == nil && strings.HasPrefix(string(buf[:n]), "+PONG")
}
