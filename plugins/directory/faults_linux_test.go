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
	t.Cleanup(func() { // detached, since a process that another test is starting has our files open for a moment
		if err := syscall.Unmount(r.b, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	r.write("i/volumes/data/large", strings.Repeat("0123456789abcdef", 1<<20))
	r.configure()
	r.running(r.a)
	want := r.contents(r.a)
	err := r.d.Migrate(t.Context(), r.m, r.report)
	// The files are copied in no fixed order, so a small one may be the first that finds no space.
	r.failed(err, want, "server b has no room left", "copy volumes/data/", "no space left on device")
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

// shared is a folder of the operator's that is mounted at path, below server a's.
func shared(t *testing.T, r *rig, path string) (file string) {
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

// A mount inside an instance does not belong to it, and is not emptied with the source.
func TestMigrate_RejectsMountInsideInstance(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	r := newRig(t, "/bin/sh", "-c", ticker)
	r.configure()
	r.running(r.a)
	file := shared(t, r, "i/volumes/data/of all")
	t.Cleanup(func() { must(t, syscall.Unmount(filepath.Join(r.a, "i/volumes/data/of all"), 0)) })
	err := r.d.Migrate(t.Context(), r.m, r.report)
	if err == nil || !strings.Contains(err.Error(), "of all on server a is a mount point") {
		t.Error(err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "precious" {
		t.Errorf("the mounted folder holds %q, %v", text, err)
	}
	r.running(r.a)
	r.nothingLeft(r.b)
}

// One that was mounted while the instance was copied keeps the source from being removed.
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
			file = shared(t, r, ".hubrelay/i/1/instance/late")
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
		t.Errorf("the mounted folder holds %q, %v", text, err)
	}
}
