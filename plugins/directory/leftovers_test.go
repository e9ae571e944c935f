package directory

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

// Directories without write permission, for example in a Go module cache, are removed. Links in them are not followed.
func TestMakeWritable(t *testing.T) {
	t.Parallel()
	root, outside := t.TempDir(), t.TempDir()
	must(t, os.Chmod(outside, 0o555))
	inner := filepath.Join(root, "x", "closed", "inner")
	must(t, os.MkdirAll(inner, 0o700))
	must(t, os.WriteFile(filepath.Join(inner, "file"), nil, 0o400))
	must(t, os.Symlink(outside, filepath.Join(inner, "link")))
	must(t, os.Chmod(inner, 0o555))
	must(t, os.Chmod(filepath.Dir(inner), 0))
	makeWritable(root)
	for path, want := range map[string]fs.FileMode{filepath.Dir(inner): 0o700, inner: 0o700, outside: 0o555} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: got %v, %v, want mode %o", path, info, err, want)
		}
	}
	instanceDir{}.emptyTrash(root)
	if _, err := os.Stat(root); !os.IsNotExist(err) {
		t.Errorf("the directory is still there: %v", err)
	}
}

// An instance that is a link is rejected before anything changes, so the job ends.
func TestMigrate_InstanceIsLink(t *testing.T) {
	t.Parallel()
	r := newRig(t, "/bin/sh", "-c", ticker)
	elsewhere := filepath.Join(filepath.Dir(r.a), "elsewhere")
	must(t, os.Rename(filepath.Join(r.a, "i"), elsewhere))
	must(t, os.Symlink(elsewhere, filepath.Join(r.a, "i")))
	if err := r.d.agents.resumeInstance(instanceDir{server: "a", path: r.a, instance: "i"}); err == nil ||
		!strings.Contains(err.Error(), "not a directory") {
		t.Errorf("at the start: got error %v", err)
	}
	if err := r.d.Migrate(t.Context(), r.m, r.report); err == nil || relay.IsIndeterminate(err) ||
		!strings.Contains(err.Error(), "not a directory") {
		t.Errorf("got error %v", err)
	}
}

func TestConfigure_MissingInstance(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if err := r.d.agents.resumeInstance(instanceDir{server: "b", path: r.b, instance: "i"}); err == nil ||
		!strings.Contains(err.Error(), "not on this server") {
		t.Errorf("got error %v", err)
	}
}

func TestMigration_FullSource(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	m, err := r.d.newMove(r.m, r.report)
	must(t, err)
	for server, path := range map[string]string{"server a": r.a, "server b": r.b} {
		err := m.describeError(&fs.PathError{Op: "write", Path: filepath.Join(path, dirFence, "job.json"), Err: syscall.ENOSPC})
		if !strings.HasPrefix(err.Error(), server) {
			t.Errorf("%s: got error %v", server, err)
		}
	}
}

// If something removes the lock, the agent takes it again. If another agent takes it, this one ends.
func TestAgent_LockIsRemoved(t *testing.T) {
	t.Parallel()
	r := newRig(t, "/bin/sh", "-c", ticker)
	r.configure()
	r.running(r.a)
	path := filepath.Join(r.a, "i", fileLock)
	must(t, os.Remove(path))
	r.running(r.a)
	r.configure()
	if n := len(r.d.agents.pids); n != 1 {
		t.Errorf("%d agents are running", n)
	}
	lock, _, err := takeLock(path + ".other")
	must(t, err)
	defer func() { _ = lock.Close() }()
	must(t, os.Rename(lock.Name(), path))
	r.until("the agent ends", func() bool { return strings.Contains(r.read("i/volumes/data/log"), "stopped") })
}
