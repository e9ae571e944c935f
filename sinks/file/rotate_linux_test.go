package file

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

// A full disk is reported.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("needs root to mount a small disk: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	path := filepath.Join(dir, "events.jsonl")
	s := openTest(t, &Config{Path: path})
	n := 0
	var err error
	for ; err == nil && n < 10_000; n++ {
		err = s.Deliver(t.Context(), sinktest.Sample(fmt.Sprintf("%06d", n)))
	}
	refused(t, err, "the disk of "+path+" is full: free some space")
	if got := (&remembering{}).idsOf(t, read(t, path)); len(got) != n-1 {
		t.Errorf("%d lines of %d", len(got), n-1)
	}
}
