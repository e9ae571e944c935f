package embeddedredis_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/embeddedredis"
)

// Whoever may write to the data folder must not be able to make us overwrite a file of ours elsewhere.
func TestLockIsNoSymbolicLink(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(dir, "lock")); err != nil {
		t.Fatal(err)
	}
	s, err := embeddedredis.Start(t.Context(), embeddedredis.Options{DataDir: dir})
	if err == nil {
		_ = s.Close(t.Context())
		t.Error("started with a lock that is a symbolic link")
	}
	if text, _ := os.ReadFile(victim); string(text) != "precious" {
		t.Errorf("the file that it leads to now holds %q", text)
	}
}

// A server that is not ours could read every notification and claim any process id, which Close would then kill.
func TestForeignServerIsNotTakenOver(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if os.Getuid() != 0 {
		t.Skip("needs root to make a socket of somebody else's")
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
		t.Fatal("started")
	}
	if !strings.Contains(err.Error(), "another user") {
		t.Errorf("the error is %v", err)
	}
}
