package directory

import (
	"os"
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
