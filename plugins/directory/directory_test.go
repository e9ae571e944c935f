package directory

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

func TestMigrate_MovesInstance(t *testing.T) {
	t.Parallel()
	r := newRig(t, "/bin/sh", "-c", ticker)
	r.configure()
	r.running(r.a)
	want := listing(t, filepath.Join(r.a, "i"))
	if err := r.d.Migrate(t.Context(), r.m, r.report); err != nil {
		t.Fatal(err)
	}
	r.running(r.b)
	if got := listing(t, filepath.Join(r.b, "i")); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	r.nothingLeft(r.a)
	log, err := os.ReadFile(filepath.Join(r.b, "i/volumes/data/log"))
	if err != nil || string(log) != "started i green\nstopped\nstarted i green\n" {
		t.Errorf("got %q, error %v", log, err)
	}
	var steps []string
	for _, p := range r.reports {
		if p.Completed {
			steps = append(steps, p.Step)
		}
	}
	if got := strings.Join(steps, " "); got != "claim stop copy verify switch start clean" {
		t.Errorf("got steps %s", got)
	}
	// A repeated call for the completed migration succeeds.
	r.m.Lease = 2
	if err := r.d.Migrate(t.Context(), r.m, r.report); err != nil {
		t.Error(err)
	}
	r.m.Lease, r.m.Undo = 3, true
	if err := r.d.Migrate(t.Context(), r.m, r.report); err != nil {
		t.Error(err)
	}
	r.running(r.b)
	// Move the instance back.
	r.m = relay.Migration{
		JobID: "back", Lease: 4, Instance: "i", CopyVolumes: true, Source: r.m.Destination, Destination: r.m.Source,
	}
	if err := r.d.Migrate(t.Context(), r.m, r.report); err != nil {
		t.Fatal(err)
	}
	r.running(r.a)
	r.nothingLeft(r.b)
	r.workEmpty(r.a)
}

func TestMigrate_WithoutCopyVolumes(t *testing.T) {
	t.Parallel()
	r := newRig(t, "/bin/sh", "-c", ticker)
	r.configure()
	r.running(r.a)
	r.m.CopyVolumes = false
	want := listing(t, filepath.Join(r.a, "i", dirVolumes))
	if err := r.d.Migrate(t.Context(), r.m, r.report); err != nil {
		t.Fatal(err)
	}
	r.running(r.b)
	r.nothingLeft(r.a)
	if got := listing(t, filepath.Join(r.b, "i",
		dirVolumes)); got != ". d---------\ndata d---------\nother d---------" {
		t.Errorf("got volumes\n%s\nwant them empty", got)
	}
	if got := listing(t, filepath.Join(r.a, dirKept, "i/job-1", dirVolumes)); got != want {
		t.Errorf("got kept volumes\n%s\nwant\n%s", got, want)
	}
}

// The entry named volumes may be a file, or a symbolic link to any path.
func TestMigrate_VolumesIsNotADirectory(t *testing.T) {
	t.Parallel()
	for name, put := range map[string]func(path string) error{
		"a file": func(path string) error { return os.WriteFile(path, []byte("x"), 0o600) },
		"a loop": func(path string) error { return os.Symlink(dirVolumes, path) },
		"a link": func(path string) error { return os.Symlink(filepath.Dir(filepath.Dir(path)), path) },
	} {
		for _, all := range []bool{true, false} {
			r := newRig(t)
			volumes := filepath.Join(r.a, "i/volumes")
			must(t, os.RemoveAll(volumes), put(volumes))
			r.m.CopyVolumes = all
			if err := r.d.Migrate(t.Context(), r.m, r.report); err != nil {
				t.Errorf("%s: got error %v", name, err)
			}
			if there, err := exists(filepath.Join(r.b, "i/volumes")); !there || err != nil {
				t.Errorf("%s: volumes is not on the destination: %v", name, err)
			}
			r.nothingLeft(r.a)
			if there, _ := exists(filepath.Join(r.a, dirKept)); there {
				t.Errorf("%s: the source was kept without a reason", name)
			}
		}
	}
}
