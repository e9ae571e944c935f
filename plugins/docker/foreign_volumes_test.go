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

// createForeignVolume creates a volume on host b with the name of the instance's volume, and a file in it.
func (r *rig) createForeignVolume(labels map[string]string) (file string) {
	r.t.Helper()
	r.createVolume(r.b, client.VolumeCreateOptions{Name: r.volume, Labels: labels})
	file = filepath.Join(r.b.volume(r.volume), "marker")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return file
}

// untouched checks that the file in the foreign volume is unchanged, and that the instance runs on host a.
func (r *rig) untouched(file string) {
	r.t.Helper()
	if text, err := os.ReadFile(file); err != nil || string(text) != "precious" {
		r.t.Errorf("got %q and error %v from the foreign volume, want its file unchanged", text, err)
	}
	r.running(r.a)
}

// An undo does not remove a volume that an earlier job created on the destination.
func TestRollBack_KeepsVolumesOfOtherJobs(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.m.CopyVolumes, r.m.Stateful = false, false
	file := r.createForeignVolume(map[string]string{labelJob: "former", labelLease: "1"})
	ctx, cancel := context.WithCancel(t.Context())
	r.d.stepHook = func(p string) {
		if p == "left" {
			cancel()
		}
	}
	if err := r.d.Migrate(ctx, r.m, r.report); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	r.m.Undo, r.m.Lease = true, 2
	if err := r.migrate(); err == nil || relay.IsIndeterminate(err) {
		t.Errorf("got error %v", err)
	}
	if left := r.left(r.b); len(left) != 1 {
		t.Errorf("the destination has %q", left)
	}
	r.untouched(file)
}

// The driver does not write to a volume that is created on the destination after the check.
func TestMigrate_KeepsVolumeCreatedAfterCheck(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var file string
	r.d.stepHook = func(p string) {
		if p == "create" {
			file = r.createForeignVolume(nil)
		}
	}
	if err := r.migrate(); err == nil || !strings.Contains(err.Error(), "has a volume "+r.volume) {
		t.Errorf("got error %v", err)
	}
	r.untouched(file)
}

// keep_source_volumes also applies to anonymous volumes.
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

// The driver removes leftovers of another job from the destination with their volumes, so the next attempt can use the
// names.
func TestMigrate_RemovesLeftoversOfOtherJobs(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	want := r.listing(r.a)
	ctx, cancel := context.WithCancel(t.Context())
	r.d.stepHook = func(p string) {
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

// An undo restores the instance even if a container uses a volume that must be removed from the destination.
func TestRollBack_RestoresSourceIfVolumeIsInUse(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	r.d.stepHook = func(p string) {
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
		t.Errorf("got error %v", err)
	}
	r.running(r.a)
	if left := r.left(r.b); len(left) != 2 {
		t.Errorf("the destination has %q", left)
	}
}
