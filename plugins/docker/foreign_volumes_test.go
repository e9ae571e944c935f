//go:build linux

package docker

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/hubrelay/hubrelay/relay"
)

// stranger creates a volume on host b with the name of the instance's volume and a foreign file.
func (r *rig) stranger(labels map[string]string) (file string) {
	r.t.Helper()
	r.createVolume(r.b, client.VolumeCreateOptions{Name: r.volume, Labels: labels})
	file = filepath.Join(r.b.volume(r.volume), "blessed")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return file
}

func (r *rig) untouched(file string) {
	r.t.Helper()
	if text, err := os.ReadFile(file); err != nil || string(text) != "precious" {
		r.t.Errorf("the volume of another holds %q, %v", text, err)
	}
	r.running(r.a)
}

// A volume that an earlier migration of any instance brought to the destination is not removed with the objects of this
// one.
func TestRollBack_KeepsVolumesOfOtherJobs(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.m.CopyVolumes, r.m.Stateful = false, false
	file := r.stranger(map[string]string{labelJob: "former", labelLease: "1"})
	ctx, cancel := context.WithCancel(t.Context())
	r.d.between = func(p string) {
		if p == "left" {
			cancel()
		}
	}
	if err := r.d.Migrate(ctx, r.m, r.report); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	r.m.Undo, r.m.Lease = true, 2
	if err := r.migrate(); err == nil || relay.IsIndeterminate(err) {
		t.Errorf("error %v", err)
	}
	if left := r.left(r.b); len(left) != 1 {
		t.Errorf("the destination has %q", left)
	}
	r.untouched(file)
}

// A volume that appears at the destination after the check is not written to.
func TestMigrate_KeepsVolumeCreatedAfterCheck(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var file string
	r.d.between = func(p string) {
		if p == "create" {
			file = r.stranger(nil)
		}
	}
	if err := r.migrate(); err == nil || !strings.Contains(err.Error(), "has a volume "+r.volume) {
		t.Errorf("error %v", err)
	}
	r.untouched(file)
}

// keep_source_volumes is meant for volumes that Docker has named, too.
func TestMigrate_KeepsAnonymousSourceVolumesIfConfigured(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *client.ContainerCreateOptions) {
		o.HostConfig.Mounts = append(o.HostConfig.Mounts, mount.Mount{Type: mount.TypeVolume, Target: "/unnamed"})
	})
	r.d.config.KeepSourceVolumes = true
	names := volumeNames(r.inspect(r.a))
	if err := r.migrate(); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, err := r.a.api.VolumeInspect(t.Context(), name, client.VolumeInspectOptions{}); err != nil {
			t.Error(err)
		}
		if name != r.volume {
			t.Cleanup(func() { _ = os.RemoveAll(r.a.volume(name)) })
		}
	}
}

// Leftovers of another job at the destination are removed with their volumes, so the next attempt can use the names.
func TestMigrate_RemovesLeftoversOfOtherJobs(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	want := r.listing(r.a)
	ctx, cancel := context.WithCancel(t.Context())
	r.d.between = func(p string) {
		if p == stepStop {
			cancel()
		}
	}
	if err := r.d.Migrate(ctx, r.m, r.report); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	r.m.JobID, r.m.Lease = "next-"+r.m.JobID, 2
	r.failed(r.migrate(), want, "already has a volume "+r.volume)
	r.m.Lease = 3
	if err := r.migrate(); err != nil {
		t.Fatal(err)
	}
	r.alone(r.b, want)
}

// Who uses a volume at the destination that is to be removed again does not keep the instance from coming back.
func TestRollBack_RestoresSourceIfVolumeIsInUse(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	r.d.between = func(p string) {
		if p == stepStart {
			r.other(r.b, func(o *client.ContainerCreateOptions) {
				o.HostConfig.Mounts = []mount.Mount{{Type: mount.TypeVolume, Source: r.volume, Target: "/data"}}
			})
			cancel()
		}
	}
	if err := r.d.Migrate(ctx, r.m, r.report); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	r.m.Undo, r.m.Lease = true, 2
	if err := r.migrate(); err == nil || relay.IsIndeterminate(err) {
		t.Errorf("error %v", err)
	}
	r.running(r.a)
	if left := r.left(r.b); len(left) != 2 {
		t.Errorf("the destination has %q", left)
	}
}
