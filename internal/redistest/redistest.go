package redistest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Server is one redis-server. Its methods may be called from the test's goroutine only.
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

// Start runs a redis-server with an append-only file until the test ends. Further arguments are redis-server's own
// ("--appendfsync", "always"). A machine without redis-server fails the test: `make test` installs it.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	// t.TempDir's path may exceed the 107 bytes of a unix socket's address.
	dir, err := os.MkdirTemp("", "redistest")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	logFile, err := os.Create(filepath.Join(dir, "redis.log"))
	if err != nil {
		tb.Fatal(err)
	}
	s := &Server{
		Socket: filepath.Join(dir, "redis.sock"),
		tb:     tb,
		log:    logFile,
		args: append([]string{
			"--port", "0", "--unixsocket", filepath.Join(dir, "redis.sock"), "--unixsocketperm", "700",
			"--dir", dir, "--save", "", "--appendonly", "yes", "--maxmemory-policy", "noeviction",
		}, args...),
	}
	s.Restart()
	tb.Cleanup(func() {
		s.Kill()
		_ = logFile.Close()
	})
	return s
}

// URL is the server's address as redis.url takes it.
func (s *Server) URL() string { return "unix://" + s.Socket }

// Kill ends the server at once, as kill -9 does. A server that does not run stays that way.
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

// Signal sends the server a signal, for instance SIGSTOP to let it hang.
func (s *Server) Signal(sig syscall.Signal) {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.proc.Process.Signal(sig); err != nil {
		s.tb.Fatal(err)
	}
}

// Restart starts the server on the same folder, killing one that still runs, and returns when it answers.
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
	if err := s.await(done); err != nil {
		s.tb.Fatal(err)
	}
}

func (s *Server) await(done <-chan struct{}) error {
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for time.Now().Before(deadline) {
		select {
		case <-done:
			out, _ := os.ReadFile(s.log.Name())
			return fmt.Errorf("redis-server ended at once:\n%s", out)
		case <-tick.C:
		}
		if s.ping() {
			return nil
		}
	}
	return fmt.Errorf("redis-server did not answer within 10s on %s", s.Socket)
}

func (s *Server) ping() bool {
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
