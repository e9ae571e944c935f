package directory

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestMigrate_FailsIfDestinationIsFull(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	r := newRig(t, "/bin/sh", "-c", ticker)
	if err := syscall.Mount("tmpfs", r.b, "tmpfs", 0, "size=8m,mode=0755"); err != nil {
		t.Skip("mount: ", err)
	}
	t.Cleanup(func() { // detached, because a process that another test starts briefly has our files open
		if err := syscall.Unmount(r.b, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	r.write("i/volumes/data/large", strings.Repeat("0123456789abcdef", 1<<20))
	r.configure()
	r.running(r.a)
	want := r.contents(r.a)
	err := r.d.Migrate(t.Context(), r.m, r.report)
	// The driver copies the files in random order, so a small file may be the first without space.
	r.failed(err, want, "server b has not enough disk space", "copy ", "no space left on device")
}

func TestMigrate_RejectsMountedInstance(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	r := newRig(t)
	home := filepath.Join(r.a, "i")
	if err := syscall.Mount("tmpfs", home, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("mount: ", err)
	}
	t.Cleanup(func() { must(t, syscall.Unmount(home, syscall.MNT_DETACH)) })
	r.write("i/file", "contents")
	err := r.d.Migrate(t.Context(), r.m, r.report)
	if err == nil || !strings.Contains(err.Error(), "is a mount point") || r.read("i/file") != "contents" {
		t.Error(err)
	}
	r.nothingLeft(r.b)
}

// mountShared mounts a directory of the operator at path below the directory of server a, and returns a file in it.
func mountShared(t *testing.T, r *rig, path string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, []byte("precious"), 0o600))
	at := filepath.Join(r.a, path)
	must(t, os.MkdirAll(at, 0o700))
	if err := syscall.Mount(filepath.Dir(file), at, "", syscall.MS_BIND, ""); err != nil {
		t.Skip("mount: ", err)
	}
	return file
}

// A mount inside an instance does not belong to it, and must not be emptied with the source.
func TestMigrate_RejectsMountInsideInstance(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	r := newRig(t, "/bin/sh", "-c", ticker)
	r.configure()
	r.running(r.a)
	file := mountShared(t, r, "i/volumes/data/shared files")
	t.Cleanup(func() {
		must(t, syscall.Unmount(filepath.Join(r.a, "i/volumes/data/shared files"), syscall.MNT_DETACH))
	})
	err := r.d.Migrate(t.Context(), r.m, r.report)
	if err == nil || !strings.Contains(err.Error(), "shared files on server a is a mount point") {
		t.Error(err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "precious" {
		t.Errorf("got %q and error %v from the mounted directory, want its file unchanged", text, err)
	}
	r.running(r.a)
	r.nothingLeft(r.b)
}

// If a directory was mounted during the copy, the source is kept.
func TestMigrate_KeepsSourceMountedDuringCopy(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	r := newRig(t)
	r.write("i/file", "contents")
	var file string
	r.d.stepHook = func(p string) {
		if p == stepClean {
			file = mountShared(t, r, ".hubrelay/i/1/instance/late")
		}
	}
	if err := r.d.Migrate(t.Context(), r.m, r.report); err != nil {
		t.Error(err)
	}
	kept, err := filepath.Glob(filepath.Join(r.a, ".hubrelay-kept/i/*/late"))
	if err != nil || len(kept) != 1 {
		t.Errorf("kept %q, %v", kept, err)
	}
	for _, path := range kept {
		must(t, syscall.Unmount(path, syscall.MNT_DETACH))
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "precious" {
		t.Errorf("got %q and error %v from the mounted directory, want its file unchanged", text, err)
	}
}
