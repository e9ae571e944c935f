package embeddedredis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/internal/backoff"
)

// ErrNoBinary is returned by Start on a machine without redis-server.
var ErrNoBinary = errors.New(`no redis-server in PATH: install it (Debian, Ubuntu: "apt install redis-server"; ` +
	`Alpine: "apk add redis"; Fedora: "dnf install redis" or "dnf install valkey"; macOS: "brew install redis"), ` +
	`set redis.url to another Redis, or set redis.url to "memory:" for one that loses its data when the relay stops`)

// Options configure the embedded server.
type Options struct {
	// DataDir is created with mode 0700 if it does not exist.
	DataDir string
	// MaxMemory is the memory limit of the server in bytes. Zero means [DefaultMaxMemory].
	MaxMemory int64
	// Log may be nil.
	Log *slog.Logger
	// Restarted is called after each restart of the server. It may be nil.
	Restarted func()
}

const (
	startTimeout   = 30 * time.Second // until the first reply, which may be LOADING
	stopTimeout    = 10 * time.Second // after SHUTDOWN
	termTimeout    = 3 * time.Second  // after SIGTERM
	restartMin     = 100 * time.Millisecond
	restartMax     = 5 * time.Second
	stableAfter    = 10 * time.Second // after this run time, the restart delay is restartMin again
	maxSocketBytes = 100              // a socket address has at most 107 bytes on Linux and 103 on macOS
)

// Server is a redis-server that belongs to this process. Its methods may be called concurrently.
type Server struct {
	log       *slog.Logger
	restarted func()
	maxMemory int64

	dir    string // absolute, without symbolic links
	socket string
	lock   *os.File

	startMu sync.Mutex // held while a server is adopted or launched

	mu     sync.Mutex
	proc   *redisProcess
	closed bool

	ctx       context.Context // ends when Close is called
	stop      context.CancelFunc
	closeDone chan struct{} // closed when Close has finished
}

// Start locks the data directory and returns when its server answers, even if the server is still loading. It adopts
// a server that a killed process left running. It fails if redis-server is not installed ([ErrNoBinary]) or does not
// start, or if another process has locked the directory.
//
// [Server.Run] restarts the server if it dies. [Server.Close] stops it.
func Start(ctx context.Context, o Options) (*Server, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	dir, err := prepareDir(o.DataDir)
	if err != nil {
		return nil, err
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o007 != 0 {
		o.Log.Warn("other users of this machine can read the data directory with all events: run chmod 700",
			"path", dir, "mode", info.Mode().Perm().String())
	}
	s := &Server{
		log: o.Log, restarted: o.Restarted, maxMemory: cmp.Or(o.MaxMemory, DefaultMaxMemory()), dir: dir, lock: lock,
		closeDone: make(chan struct{}),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	if s.socket, err = socketPath(dir); err == nil {
		err = s.adoptOrLaunch(ctx)
	}
	if err != nil {
		s.stop()
		_ = lock.Close()
		return nil, err
	}
	return s, nil
}

// URL returns the redis.url of the server.
func (s *Server) URL() string { return (&url.URL{Scheme: "unix", Path: s.socket}).String() }

// PID returns the process ID of the current or last server.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.pid
}

// adoptOrLaunch adopts the running server of the directory, or launches one.
func (s *Server) adoptOrLaunch(ctx context.Context) error {
	s.startMu.Lock()
	defer s.startMu.Unlock()
	if err := s.ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	p, err := s.adoptRunning(ctx)
	if err != nil {
		return err
	}
	if p == nil {
		if p, err = s.launchServer(ctx); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.proc = p
	s.mu.Unlock()
	return nil
}

// Run restarts the server whenever it dies. It returns nil when ctx ends or Close is called, and does not stop the
// server.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	retry := backoff.Backoff{Min: restartMin, Max: restartMax}
	for {
		s.mu.Lock()
		p := s.proc
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-p.exited:
		}
		if s.ctx.Err() != nil {
			return nil
		}
		if time.Since(p.started) > stableAfter {
			retry.Reset()
		}
		s.log.Warn("the embedded redis-server ended", "pid", p.pid, "last_lines", p.lastLines.String())
		if !s.restartServer(ctx, &retry) {
			return nil
		}
	}
}

// restartServer repeats with a growing delay until a server runs. It returns false if ctx ended or Close was called.
func (s *Server) restartServer(ctx context.Context, retry *backoff.Backoff) bool {
	for {
		if !await.Duration(ctx, retry.Next()) {
			return false
		}
		err := s.adoptOrLaunch(ctx)
		if err == nil {
			s.log.Info("the embedded redis-server was restarted", "pid", s.PID())
			if s.restarted != nil {
				s.restarted()
			}
			return true
		}
		if s.ctx.Err() != nil || ctx.Err() != nil {
			return false
		}
		s.log.Error("starting the embedded redis-server failed", "error", err)
	}
}

// Close stops the server and unlocks the directory. If the server does not stop in time, or ctx ends, Close kills it.
// It may be called twice.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		<-s.closeDone
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	defer close(s.closeDone)
	s.stop()
	s.startMu.Lock() // a restart in progress fails, or its server is stopped here
	defer s.startMu.Unlock()
	s.mu.Lock()
	p := s.proc
	s.mu.Unlock()
	p.stopProcess(ctx, s)
	if err := s.lock.Close(); err != nil {
		return fmt.Errorf("unlock the data directory: %w", err)
	}
	return nil
}

// stopProcess stops the process: SHUTDOWN, SIGTERM, SIGKILL.
func (p *redisProcess) stopProcess(ctx context.Context, s *Server) {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	select {
	case <-p.exited:
		return
	default:
	}
	if _, err := call(ctx, s.socket, "SHUTDOWN"); err == nil || isEOF(err) {
		if p.waitExited(ctx) {
			return
		}
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		s.log.Warn("sending a signal to the embedded redis-server, which did not stop",
			"pid", p.pid, "signal", sig.String())
		_ = syscall.Kill(p.pid, sig)
		// Continue after ctx has ended, because a running server would keep the directory locked.
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), termTimeout)
		ended := p.waitExited(limit)
		cancel()
		if ended {
			return
		}
	}
}

// waitExited waits until the process has ended. It returns false if ctx ends first.
func (p *redisProcess) waitExited(ctx context.Context) bool {
	_, late := await.Value(ctx, p.exited)
	return late == nil
}

// prepareDir creates the directory if it does not exist, and returns its absolute path.
func prepareDir(name string) (string, error) {
	if name == "" {
		return "", errors.New("redis.data_dir is empty: set redis.data_dir")
	}
	if err := os.MkdirAll(name, 0o700); err != nil {
		return "", fmt.Errorf("create the data directory: %w; set redis.data_dir to a directory that the relay can write to", err)
	}
	if err := tightenDir(name); err != nil {
		return "", fmt.Errorf("remove the permissions of other users from the data directory: %w", err)
	}
	abs, err := filepath.Abs(name)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return "", fmt.Errorf("resolve the data directory: %w", err)
	}
	return abs, nil
}

// appendDir is the directory of the append-only file, by the default of redis-server.
const appendDir = "appendonlydir"

// tightenDir removes the permissions of other users, who could read the data, from an existing directory.
// It changes only a directory that is empty or has data of an earlier start, and not one such as /tmp.
func tightenDir(name string) error {
	info, err := os.Stat(name)
	if err != nil || info.Mode().Perm()&0o077 == 0 {
		return err
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return err
	}
	hasData := slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == appendDir })
	if len(entries) > 0 && !hasData {
		return nil
	}
	return os.Chmod(name, info.Mode().Perm()&0o700)
}
