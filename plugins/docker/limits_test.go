//go:build linux

package docker

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Docker's archives cannot carry every file. The migration fails before the instance starts on the destination.
func TestMigrate_FailsAtLimitsOfArchives(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(dir string) error
		want   string
	}{
		"time before 1970": {
			func(dir string) error {
				old := time.Unix(-1, 500_000_000)
				return os.Chtimes(filepath.Join(dir, "deep/tool"), old, old)
			},
			`server a: modification time 1969-12-31 of "deep/tool" cannot be copied`,
		},
		"link above the volume": {
			func(dir string) error { return os.Symlink("../../../..", filepath.Join(dir, "up")) },
			"invalid symlink",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			if err := c.change(r.a.volume(r.volume)); err != nil {
				t.Fatal(err)
			}
			r.failed(r.migrate(), r.listing(r.a), c.want)
		})
	}
}

// A relative link may lead one directory above the volume.
func TestMigrate_CopiesLinkAboveVolume(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	dir := r.a.volume(r.volume)
	old := time.Unix(0, 1)
	if err := errors.Join(
		os.Symlink("../other", filepath.Join(dir, "up")), os.Symlink("../../other", filepath.Join(dir, "deep/up")),
		os.Chtimes(filepath.Join(dir, "deep/tool"), old, old),
	); err != nil {
		t.Fatal(err)
	}
	want := r.listing(r.a)
	if err := r.migrate(); err != nil {
		t.Fatal(err)
	}
	r.alone(r.b, want)
}
