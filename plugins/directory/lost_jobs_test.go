package directory

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

// If Redis loses a job during its migration, the next job of the instance adopts it, even for another destination.
func TestMigrate_ContinuesAfterLostJob(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"stopped", "copy", "verify", "switch", "marked"} {
		for _, undo := range []bool{false, true} {
			r := newRig(t, "/bin/sh", "-c", ticker)
			c := filepath.Join(filepath.Dir(r.a), "c")
			must(t, os.Mkdir(c, 0o755))
			r.configure()
			r.running(r.a)
			r.killAt(point)
			m := r.m
			m.JobID, m.Destination, m.Undo = "next", server("c", c), undo
			err := r.d.Migrate(t.Context(), m, r.report)
			switch {
			case point == "marked": // the instance may already be on the first destination
				if !relay.IsIndeterminate(err) || !strings.Contains(err.Error(), r.b) {
					t.Errorf("%s: got error %v", point, err)
				}
				must(t, os.Remove(filepath.Join(r.a, dirFence, "i/2", fileSwitched)))
				if err := r.d.Migrate(t.Context(), m, r.report); undo == (err == nil) {
					t.Errorf("%s, after following the advice in the error: %v", point, err)
				}
			case undo == (err == nil) || relay.IsIndeterminate(err) || errors.Is(err, relay.ErrSuperseded):
				t.Errorf("%s: got error %v", point, err)
			}
			if r.b = c; undo {
				r.running(r.a)
				continue
			}
			r.running(c)
			r.nothingLeft(r.a)
		}
	}
}

// The command of an instance can remove its own directory. Its jobs then end, so they keep no server slots.
func TestMigrate_InstanceDisappears(t *testing.T) {
	t.Parallel()
	for _, undo := range []bool{false, true} {
		r := newRig(t, "/bin/sh", "-c", ticker)
		r.configure()
		r.running(r.a)
		there := r.m
		must(t, r.d.Migrate(t.Context(), there, r.report))
		back := there
		back.JobID, back.Lease, back.Source, back.Destination = "back", 2, there.Destination, there.Source
		must(t, r.d.Migrate(t.Context(), back, r.report))
		must(t, os.Rename(filepath.Join(r.a, "i"), filepath.Join(filepath.Dir(r.a), "gone")))
		again := there
		again.JobID, again.Lease, again.Undo = "again", 3, undo
		err := r.d.Migrate(t.Context(), again, r.report)
		if err == nil || relay.IsIndeterminate(err) || !strings.Contains(err.Error(), "the instance has disappeared") {
			t.Errorf("undo %t: got error %v", undo, err)
		}
	}
}
