package adminsocket

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

const health = "127.0.0.1:9090"

func listen(t *testing.T, dataDir string, log io.Writer) net.Listener {
	t.Helper()
	l, err := Listen(dataDir, health, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// shortDir creates a directory whose path is short enough for a socket in it.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "as")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestListenInDataDirectory(t *testing.T) {
	dir := filepath.Join(shortDir(t), "data")
	l := listen(t, dir, io.Discard)
	path := filepath.Join(dir, FileName)
	info, err := os.Lstat(path)
	if err != nil || l.Addr().String() != path || info.Mode().Perm() != 0o600 || info.Mode().Type() != os.ModeSocket {
		t.Errorf("got %s with %v, %v; want a socket of mode 0600 at %s", l.Addr(), info, err, path)
	}
	if found, err := Find(Target{DataDir: dir, HealthListen: health}); err != nil || found != path {
		t.Errorf("got %s, %v; want %s", found, err, path)
	}
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = conn.Write([]byte("hello"))
		_ = conn.Close()
	}()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(conn); string(text) != "hello" {
		t.Errorf("our own user got %q, %v", text, err)
	}
	_ = l.Close()
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket still exists after Close")
	}
}

// A killed relay leaves its socket without the lock.
func TestListenReplacesAbandonedSocket(t *testing.T) {
	dir := shortDir(t)
	abandoned, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, FileName)})
	if err != nil {
		t.Fatal(err)
	}
	abandoned.SetUnlinkOnClose(false)
	_ = abandoned.Close()
	if l := listen(t, dir, io.Discard); l.Addr().String() != filepath.Join(dir, FileName) {
		t.Errorf("got %s", l.Addr())
	}
}

func TestListenUsesNextLocation(t *testing.T) {
	inUse := shortDir(t)
	listen(t, inUse, io.Discard)
	file := filepath.Join(shortDir(t), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, dataDir := range map[string]string{
		"another relay uses the data directory": inUse,
		"the data directory is a file":          file,
		"the path is too long":                  filepath.Join(shortDir(t), strings.Repeat("x", maxPathBytes)),
	} {
		t.Run(name, func(t *testing.T) {
			runtime := shortDir(t)
			t.Setenv("XDG_RUNTIME_DIR", runtime)
			own := filepath.Join(runtime, "hubrelay-"+strconv.Itoa(os.Geteuid()))
			l := listen(t, dataDir, io.Discard)
			if want := filepath.Join(own, "admin-9090.sock"); l.Addr().String() != want {
				t.Fatalf("got %s, want %s", l.Addr(), want)
			}
			if info, err := os.Stat(own); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("the directory is %v, %v; want mode 0700", info, err)
			}
			if dataDir != inUse {
				found, err := Find(Target{DataDir: dataDir, HealthListen: health})
				if err != nil || found != l.Addr().String() {
					t.Errorf("Find returned %s, %v", found, err)
				}
			}
		})
	}
}

// Another user may create the private directory first, to impersonate the daemon.
func TestListenRejectsForeignDirectory(t *testing.T) {
	runtime := shortDir(t)
	t.Setenv("XDG_RUNTIME_DIR", runtime)
	own := filepath.Join(runtime, "hubrelay-"+strconv.Itoa(os.Geteuid()))
	if err := os.Mkdir(own, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(own, 0o777); err != nil {
		t.Fatal(err)
	}
	if l := listen(t, "/dev/null/data", io.Discard); strings.HasPrefix(l.Addr().String(), runtime) {
		t.Errorf("got %s in a directory that others may write to", l.Addr())
	}
}

func TestFind_ErrorNamesPaths(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", shortDir(t))
	dir := shortDir(t)
	path, err := Find(Target{DataDir: dir, HealthListen: "127.0.0.1:1"})
	if err == nil || !strings.Contains(err.Error(), filepath.Join(dir, FileName)) {
		t.Errorf("got %s, %v", path, err)
	}
}

// Two relays may share a data directory by mistake. Each configuration leads to its own relay.
func TestFindPrefersOwnHealthListener(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", shortDir(t))
	dir := shortDir(t)
	first := listen(t, dir, io.Discard)
	second, err := Listen(dir, "127.0.0.1:9999", testkit.Log(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = second.Close() })
	for listener, want := range map[string]string{
		health: first.Addr().String(), "127.0.0.1:9999": second.Addr().String(), "127.0.0.1:0": first.Addr().String(),
	} {
		if got, err := Find(Target{DataDir: dir, HealthListen: listener, Configured: true}); err != nil || got != want {
			t.Errorf("%s: got %s, %v; want %s", listener, got, err, want)
		}
	}
}

// Another user may serve a socket that commands of root or ours would trust.
func TestFindSkipsForeignSockets(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	t.Setenv("XDG_RUNTIME_DIR", shortDir(t))
	dir := shortDir(t)
	listen(t, dir, io.Discard)
	if err := os.Chown(filepath.Join(dir, FileName), 65534, 65534); err != nil {
		t.Fatal(err)
	}
	for _, configured := range []bool{true, false} {
		if path, err := Find(Target{DataDir: dir, HealthListen: health, Configured: configured}); err == nil {
			t.Errorf("configured %v: found %s of another user", configured, path)
		}
	}
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if _, err := Find(Target{DataDir: dir, HealthListen: health, Configured: true}); err != nil {
		t.Errorf("root does not find the socket of the data directory's owner: %v", err)
	}
	if path, err := Find(Target{DataDir: dir, HealthListen: health}); err == nil {
		t.Errorf("found %s of another user in a directory that was not configured", path)
	}
}

// The daemon checks the user that the kernel reports, because the mode of the file may be wrong.
func TestOtherUsersAreRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	dir := shortDir(t)
	var log testkit.Buffer
	l := listen(t, dir, &log)
	path := l.Addr().String()
	for name, mode := range map[string]os.FileMode{dir: 0o755, path: 0o666} {
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("hello"))
			_ = conn.Close()
		}
	}()
	connect := func(uid uint32) string {
		const script = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(9))"
		cmd := exec.Command("/usr/bin/python3", "-c", script, path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("user %d: %v\n%s", uid, err, out)
		}
		return string(bytes.TrimSpace(out))
	}
	if got := connect(0); got != "b'hello'" {
		t.Errorf("root got %s", got)
	}
	if got := connect(65534); got != "b''" {
		t.Errorf("another user got %s", got)
	}
	testkit.WaitFor(t, "the rejection in the log", func() bool { return strings.Contains(log.String(), "uid=65534") })
}
