package embeddedredis_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/embeddedredis"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

const holdVariable = "HUBRELAY_TEST_HOLD"

// TestMain is also the main function of the process that hold starts.
func TestMain(m *testing.M) {
	if dir := os.Getenv(holdVariable); dir != "" {
		s, err := embeddedredis.Start(context.Background(), embeddedredis.Options{DataDir: dir})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("pid", s.PID())
		select {}
	}
	goleak.VerifyTestMain(m)
}

func start(t *testing.T, dir string) *embeddedredis.Server {
	t.Helper()
	s, err := embeddedredis.Start(t.Context(), embeddedredis.Options{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// supervise runs Server.Run until the test ends.
func supervise(t *testing.T, s *embeddedredis.Server) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- s.Run(context.Background()) }()
	t.Cleanup(func() {
		_ = s.Close(context.Background())
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func client(t *testing.T, s *embeddedredis.Server) *redis.Client {
	t.Helper()
	u, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: u.Path, Protocol: 2, DisableIdentity: true})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func expect(t *testing.T, c *redis.Client, key, want string) {
	t.Helper()
	testkit.Eventually(t, "Redis to answer", func() error {
		got, err := c.Get(context.Background(), key).Result()
		if err == nil && got != want {
			t.Fatalf("%s: got %q, want %q", key, got, want)
		}
		return err
	})
}

func TestServer_KeepsDataAfterRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "directory")
	if err := os.MkdirAll(dir, 0o755); err != nil { // tightened by the start
		t.Fatal(err)
	}
	s := start(t, dir)
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: got mode %v, %v, want 0700", info.Mode(), err)
	}
	if err := client(t, s).Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "appendonlydir", "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("got files %v, %v, want those of redis-server", files, err)
	}
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: got mode %v, %v, want no access for others", file, info.Mode(), err)
		}
	}
	for range 2 {
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if alive(s.PID()) {
		t.Fatal("the server is running after Close")
	}
	if err := s.Run(t.Context()); err != nil {
		t.Fatalf("Run after Close: %v", err)
	}
	expect(t, client(t, start(t, dir)), "k", "v")
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestRun_RestartsKilledServer(t *testing.T) {
	s := start(t, t.TempDir())
	supervise(t, s)
	c := client(t, s)
	if err := c.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	pid := s.PID()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	expect(t, c, "k", "v")
	awaitReplaced(t, s, pid)
}

// awaitReplaced waits for another process. The new server answers slightly before PID returns its process ID.
func awaitReplaced(t *testing.T, s *embeddedredis.Server, pid int) {
	t.Helper()
	testkit.Eventually(t, "another process", func() error {
		if s.PID() == pid {
			return errors.New("got the same process ID")
		}
		return nil
	})
}

// hold starts another process that locks the directory, and returns it with the process ID of its server.
func hold(t *testing.T, dir string) (*exec.Cmd, int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holdVariable+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kill(cmd) })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "pid ")))
	if err != nil {
		t.Fatalf("the other process printed %q", line)
	}
	return cmd, pid
}

func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_, _ = cmd.Process.Wait()
}

func TestStart_AdoptsServerOfKilledProcess(t *testing.T) {
	dir := t.TempDir()
	holder, pid := hold(t, dir)
	socket := filepath.Join(dir, "redis.sock")
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: socket, Protocol: 2, DisableIdentity: true})
	defer func() { _ = c.Close() }()
	if err := c.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	kill(holder)

	s := start(t, dir)
	supervise(t, s)
	if s.PID() != pid {
		t.Fatalf("process ID: got %d, want %d", s.PID(), pid)
	}
	expect(t, c, "k", "v")

	// Run also watches a server that is not a child process.
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	expect(t, c, "k", "v")
	awaitReplaced(t, s, pid)
}

func TestStart_StopsServerWithoutSocket(t *testing.T) {
	if _, err := os.Stat("/proc/self/cwd"); err != nil {
		t.Skip("needs /proc")
	}
	dir := t.TempDir()
	holder, pid := hold(t, dir)
	kill(holder)
	if err := os.Remove(filepath.Join(dir, "redis.sock")); err != nil {
		t.Fatal(err)
	}
	s := start(t, dir)
	if s.PID() == pid {
		t.Fatal("adopted a server without a socket")
	}
	if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err == nil && cwd == dir {
		t.Fatal("two servers use the same directory")
	}
}

func TestStart_RejectsUnusableDirectories(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T) string
		want    []string
	}{
		{"directory in use", func(t *testing.T) string {
			dir := t.TempDir()
			start(t, dir)
			return dir
		}, []string{"in use by process " + strconv.Itoa(os.Getpid()), "redis.data_dir"}},
		{"file instead of a directory", func(t *testing.T) string {
			file := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return file
		}, []string{"create the data directory", "not a directory"}},
		{"no directory", func(*testing.T) string { return "" }, []string{"set redis.data_dir"}},
		{"invalid data", func(t *testing.T) string {
			dir := t.TempDir()
			if err := os.MkdirAll(filepath.Join(dir, "appendonlydir"), 0o700); err != nil {
				t.Fatal(err)
			}
			manifest := filepath.Join(dir, "appendonlydir", "appendonly.aof.manifest")
			if err := os.WriteFile(manifest, []byte("nonsense\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			return dir
		}, []string{"redis-server failed to start in", "manifest"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := c.prepare(t)
			s, err := embeddedredis.Start(t.Context(), embeddedredis.Options{DataDir: dir})
			if err == nil {
				_ = s.Close(t.Context())
				t.Fatal("got no error")
			}
			for _, want := range append(c.want, dir) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got error %q, want it to contain %q", err, want)
				}
			}
		})
	}
}

func TestStart_WithoutBinary(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := embeddedredis.Start(t.Context(), embeddedredis.Options{DataDir: t.TempDir()})
	if !errors.Is(err, embeddedredis.ErrNoBinary) {
		t.Fatalf("got %v, want ErrNoBinary", err)
	}
	for _, want := range []string{"apt install", "apk add", "dnf install", "brew install", `"memory:"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got error %q, want it to contain %q", err, want)
		}
	}
}

func TestStart_LongPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30), "with space")
	s := start(t, dir)
	u, _ := url.Parse(s.URL())
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(u.Path)) })
	if len(u.Path) > 100 {
		t.Errorf("socket path %s: got %d bytes, want at most 100", u.Path, len(u.Path))
	}
	info, err := os.Stat(filepath.Dir(u.Path))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory of the socket: got %v, %v, want mode 0700", info, err)
	}
	if err := client(t, s).Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestStart_TruncatedAppendOnlyFile(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	c := client(t, s)
	for _, key := range []string{"whole", "torn"} {
		if err := c.Set(t.Context(), key, "v", 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "appendonlydir", "*.incr.aof"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	info, err := os.Stat(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(files[0], info.Size()-3); err != nil {
		t.Fatal(err)
	}
	expect(t, client(t, start(t, dir)), "whole", "v")
}
