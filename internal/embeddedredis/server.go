package embeddedredis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// ErrNoBinary is returned by Start on a machine without redis-server.
var ErrNoBinary = errors.New(`no redis-server in PATH: install it (Debian, Ubuntu: "apt install redis-server"; ` +
	`Alpine: "apk add redis"; Fedora: "dnf install redis" or "dnf install valkey"; macOS: "brew install redis"), set redis.url to a Redis that runs ` +
	`elsewhere, or set redis.url to "memory:" for one that forgets everything when the relay stops`)

// Options says where the embedded server keeps its data.
type Options struct {
	// DataDir is created with mode 0700 where it is missing.
	DataDir string
	// Log may be nil.
	Log *slog.Logger
	// Restarted, where not nil, is called by Run each time the server runs again.
	Restarted func()
}

const (
	startTimeout   = 30 * time.Second // a server that does not even say that it is loading
	stopTimeout    = 10 * time.Second // after SHUTDOWN
	termTimeout    = 3 * time.Second  // after SIGTERM
	restartMin     = 100 * time.Millisecond
	restartMax     = 5 * time.Second
	stableAfter    = 10 * time.Second // a server that ran this long starts again without delay
	maxSocketBytes = 100              // 107 on Linux and 103 on macOS is what a socket's address may have
)

// Server is a redis-server that belongs to this process. Its methods may be called concurrently.
type Server struct {
	log       *slog.Logger
	restarted func()

	dir    string // absolute, without symbolic links
	socket string
	lock   *os.File

	startMu sync.Mutex // held while a server is sought or started

	mu     sync.Mutex
	proc   *redisProcess
	closed bool

	ctx       context.Context // ends when Close begins
	stop      context.CancelFunc
	closeDone chan struct{} // closed when Close is through
}

// Start locks the data folder and returns when its server answers, if only that it is loading. A server that a killed
// process left behind is taken over. It fails with [ErrNoBinary], when another process holds the folder, and when
// redis-server cannot work there.
//
// [Server.Run] must run to keep the server alive, and [Server.Close] stops it.
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
		o.Log.Warn("other users of this machine can read the data folder, which holds every notification: chmod 700 it",
			"folder", dir, "mode", info.Mode().Perm().String())
	}
	s := &Server{log: o.Log, restarted: o.Restarted, dir: dir, lock: lock, closeDone: make(chan struct{})}
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

// URL is the server's address as redis.url takes it.
func (s *Server) URL() string { return (&url.URL{Scheme: "unix", Path: s.socket}).String() }

// PID is the process id of the server that runs, or ran last.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.pid
}

// adoptOrLaunch takes over the folder's server or starts one.
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
		if p, err = s.launch(ctx); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.proc = p
	s.mu.Unlock()
	return nil
}

// Run starts the server again whenever it dies, and returns nil when ctx ends or Close is called. It leaves the server
// running.
func (s *Server) Run(ctx context.Context) error {
	wait := restartMin
	for {
		s.mu.Lock()
		p := s.proc
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-s.ctx.Done():
			return nil
		case <-p.exited:
		}
		if s.ctx.Err() != nil {
			return nil
		}
		if time.Since(p.started) > stableAfter {
			wait = restartMin
		}
		s.log.Warn("the embedded redis-server ended, starting it again", "pid", p.pid, "last_lines", p.lastLines.String())
		if !s.restart(ctx, &wait) {
			return nil
		}
	}
}

// restart repeats with backoff until a server runs. It returns false when there is none to be.
func (s *Server) restart(ctx context.Context, wait *time.Duration) bool {
	for {
		if !s.sleep(ctx, *wait) {
			return false
		}
		*wait = min(2**wait, restartMax)
		err := s.adoptOrLaunch(ctx)
		if err == nil {
			s.log.Info("the embedded redis-server runs again", "pid", s.PID())
			if s.restarted != nil {
				s.restarted()
			}
			return true
		}
		if s.ctx.Err() != nil || ctx.Err() != nil {
			return false
		}
		s.log.Error("the embedded redis-server did not start, trying again", "error", err, "retry_in", *wait)
	}
}

func (s *Server) sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	case <-s.ctx.Done():
		return false
	}
}

// Close stops the server in order, by force where that takes too long or ctx ends, and unlocks the folder. It may be
// called twice.
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
	s.startMu.Lock() // a restart under way gives up, or its server is the one to stop
	defer s.startMu.Unlock()
	s.mu.Lock()
	p := s.proc
	s.mu.Unlock()
	p.end(ctx, s)
	if err := s.lock.Close(); err != nil {
		return fmt.Errorf("unlock the data folder: %w", err)
	}
	return nil
}

// end stops the process: SHUTDOWN, SIGTERM, SIGKILL.
func (p *redisProcess) end(ctx context.Context, s *Server) {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	select {
	case <-p.exited:
		return
	default:
	}
	if _, err := call(ctx, s.socket, "SHUTDOWN"); err == nil || isEOF(err) {
		if p.wait(ctx.Done()) {
			return
		}
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		s.log.Warn("the embedded redis-server does not stop, sending a signal", "pid", p.pid, "signal", sig.String())
		_ = syscall.Kill(p.pid, sig)
		// Also when ctx has ended: a server that goes on would hold the folder.
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), termTimeout)
		ended := p.wait(limit.Done())
		cancel()
		if ended {
			return
		}
	}
}

// wait reports whether the process ended before give up.
func (p *redisProcess) wait(giveUp <-chan struct{}) bool {
	select {
	case <-p.exited:
		return true
	case <-giveUp:
		return false
	}
}

// prepareDir returns the absolute path of the folder, made where it is missing.
func prepareDir(name string) (string, error) {
	if name == "" {
		return "", errors.New("the embedded redis-server needs a data folder: set redis.data_dir")
	}
	if err := os.MkdirAll(name, 0o700); err != nil {
		return "", fmt.Errorf("make the data folder: %w", err)
	}
	abs, err := filepath.Abs(name)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return "", fmt.Errorf("find the data folder: %w", err)
	}
	return abs, nil
}
