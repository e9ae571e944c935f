package embeddedredis_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/embeddedredis"
)

// A user with write access to the data directory must not make the relay overwrite another file.
func TestStart_RejectsSymbolicLinkAsLock(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(t.TempDir(), "target")
	if err := os.WriteFile(target, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, filepath.Join(dir, "lock")); err != nil {
		t.Fatal(err)
	}
	s, err := embeddedredis.Start(t.Context(), embeddedredis.Options{DataDir: dir})
	if err == nil {
		_ = s.Close(t.Context())
		t.Error("Start with a symbolic link as lock: got no error")
	}
	if text, _ := os.ReadFile(target); string(text) != "precious" {
		t.Errorf("target of the link: got %q, want no change", text)
	}
}

// A server of another user could read all notifications, and return any process ID, which Close would kill.
func TestStart_RejectsServerOfAnotherUser(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if os.Getuid() != 0 {
		t.Skip("needs root to create a socket of another user")
	}
	socket := filepath.Join(dir, "redis.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if err := os.Lchown(socket, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	s, err := embeddedredis.Start(t.Context(), embeddedredis.Options{DataDir: dir})
	if err == nil {
		_ = s.Close(t.Context())
		t.Fatal("got no error")
	}
	if !strings.Contains(err.Error(), "another user") {
		t.Errorf("got error %v, want %q", err, "another user")
	}
}
