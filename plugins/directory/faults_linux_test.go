package directory

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestDestinationFull(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	r := newRig(t, "/bin/sh", "-c", ticker)
	if err := syscall.Mount("tmpfs", r.b, "tmpfs", 0, "size=8m"); err != nil {
		t.Skip("mount: ", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(r.b, 0); err != nil {
			t.Error(err)
		}
	})
	r.write("i/volumes/data/large", strings.Repeat("0123456789abcdef", 1<<20))
	r.configure()
	r.running(r.a)
	want := r.contents(r.a)
	err := r.d.Migrate(t.Context(), r.m, r.report)
	r.failed(err, want, "server b has no room left", "volumes/data/large")
}

func TestInstanceIsAMount(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	r := newRig(t)
	home := filepath.Join(r.a, "i")
	if err := syscall.Mount("tmpfs", home, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("mount: ", err)
	}
	t.Cleanup(func() { must(t, syscall.Unmount(home, 0)) })
	r.write("i/file", "contents")
	err := r.d.Migrate(t.Context(), r.m, r.report)
	if err == nil || !strings.Contains(err.Error(), "is a mount of its own") || r.read("i/file") != "contents" {
		t.Error(err)
	}
	r.nothingLeft(r.b)
}
