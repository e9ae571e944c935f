//go:build linux

package docker

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
)

// Missing requirements at the destination are found while the instance runs, and nothing is left there.
func TestMigrate_RejectsMissingRequirements(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change  func(*client.ContainerCreateOptions)
		prepare func(r *rig)
		says    []string
	}{
		"no such network": {
			change: func(o *client.ContainerCreateOptions) { o.HostConfig.NetworkMode = "refused-only-a" },
			says:   []string{"server b has no network refused-only-a"},
		},
		"no such path": {
			change: func(o *client.ContainerCreateOptions) {
				o.HostConfig.Mounts = append(o.HostConfig.Mounts, mount.Mount{
					Type: mount.TypeBind, Source: hostA.folder + "/bound", Target: "/bound",
				})
			},
			prepare: func(r *rig) { r.rename(hostA.folder+"/bound", hostA.folder+"/gone") },
			says:    []string{"server b has no ", "/bound, which the instance mounts"},
		},
		"a container has the name": {
			prepare: func(r *rig) { r.other(r.b, func(o *client.ContainerCreateOptions) { o.Name = r.instance }) },
			says:    []string{"server b already has a container", "remove or rename it"},
		},
		"a volume has the name": {
			prepare: func(r *rig) { r.createVolume(r.b, client.VolumeCreateOptions{Name: r.volume}) },
			says:    []string{"server b already has a volume", "docker volume rm"},
		},
		"a volume is in use by another": {
			prepare: func(r *rig) {
				r.other(r.a, func(o *client.ContainerCreateOptions) {
					o.HostConfig.Mounts = []mount.Mount{{Type: mount.TypeVolume, Source: r.volume, Target: "/data"}}
				})
			},
			says: []string{"is also used by container", "-other; stop"},
		},
		"a volume is somewhere else": {
			change: func(o *client.ContainerCreateOptions) {
				o.HostConfig.Mounts = append(o.HostConfig.Mounts, mount.Mount{
					Type: mount.TypeVolume, Source: o.Name + "-tmp", Target: "/tmp",
					VolumeOptions: &mount.VolumeOptions{
						DriverConfig: &mount.Driver{
							Name: "local", Options: map[string]string{"type": "tmpfs", "device": "tmpfs"},
						},
					},
				})
			},
			says: []string{"-tmp has its own driver or options"},
		},
		"a volume is a claim": {
			change: func(o *client.ContainerCreateOptions) {
				o.HostConfig.Mounts = append(o.HostConfig.Mounts, mount.Mount{
					Type: mount.TypeVolume, Source: "hubrelay.lease." + o.Name + "-other.7", Target: "/claim",
				})
			},
			says: []string{"hubrelay.lease.", "belongs to the driver"},
		},
		"--rm": {
			change: func(o *client.ContainerCreateOptions) {
				o.HostConfig.AutoRemove, o.HostConfig.RestartPolicy = true, container.RestartPolicy{}
			},
			says: []string{"--rm"},
		},
		"a namespace of another": {
			change: func(o *client.ContainerCreateOptions) { o.HostConfig.PidMode = "container:" + refusedPeer },
			says:   []string{"shares a namespace with another container"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if hostA == nil {
				t.Skipf("%s is not set: make test-docker", dockerVariable)
			}
			refusedWorld(t)
			r := newRig(t, c.change)
			if c.prepare != nil {
				c.prepare(r)
			}
			want, before, there := r.listing(r.a), r.inspect(r.a), r.left(r.b)
			err := r.migrate()
			if err == nil {
				t.Fatal("no error")
			}
			for _, text := range c.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%q does not say %q", err, text)
				}
			}
			after := r.inspect(r.a)
			if after.ID != before.ID || after.State.StartedAt != before.State.StartedAt || !after.State.Running ||
				r.listing(r.a) != want {
				t.Errorf("the instance was touched: %+v", after.State)
			}
			if now := r.left(r.b); strings.Join(now, "\n") != strings.Join(there, "\n") {
				t.Errorf("the destination had %q and has %q", there, now)
			}
		})
	}
}

func (r *rig) rename(from, to string) {
	r.t.Helper()
	if err := os.Rename(from, to); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) createVolume(d *daemon, o client.VolumeCreateOptions) {
	r.t.Helper()
	if _, err := d.api.VolumeCreate(r.t.Context(), o); err != nil {
		r.t.Fatal(err)
	}
}

// other starts another container besides the instance.
func (r *rig) other(d *daemon, change func(*client.ContainerCreateOptions)) {
	r.t.Helper()
	ctx := r.t.Context()
	if d == hostB {
		r.lend(d)
	}
	o := client.ContainerCreateOptions{
		Name: r.instance + "-other", Config: &container.Config{Image: imageName},
		HostConfig: &container.HostConfig{NetworkMode: "none"},
	}
	change(&o)
	if _, err := d.api.ContainerCreate(ctx, o); err != nil {
		r.t.Fatal(err)
	}
	if _, err := d.api.ContainerStart(ctx, o.Name, client.ContainerStartOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// lend gives a host the image.
func (r *rig) lend(d *daemon) {
	r.t.Helper()
	saved, err := hostA.api.ImageSave(r.t.Context(), []string{imageName})
	if err != nil {
		r.t.Fatal(err)
	}
	loaded, err := d.api.ImageLoad(r.t.Context(), saved)
	if err == nil {
		_, err = io.Copy(io.Discard, loaded)
		err = errors.Join(err, loaded.Close())
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// refusedPeer is a container that others are bound to, in a network that only host a has.
const refusedPeer = "refused-peer"

var makeRefusedWorld sync.Once

// refusedWorld makes what only host a has.
func refusedWorld(t *testing.T) {
	t.Helper()
	makeRefusedWorld.Do(func() {
		ctx := context.Background()
		_, err := hostA.api.NetworkCreate(ctx, "refused-only-a", client.NetworkCreateOptions{Driver: "bridge"})
		err = errors.Join(err, os.MkdirAll(hostA.folder+"/bound", 0o700))
		if err != nil {
			t.Fatal(err)
		}
		_, err = hostA.api.ContainerCreate(ctx, client.ContainerCreateOptions{
			Name: refusedPeer, Config: &container.Config{Image: imageName},
			HostConfig: &container.HostConfig{NetworkMode: "none"},
		})
		if err == nil {
			_, err = hostA.api.ContainerStart(ctx, refusedPeer, client.ContainerStartOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	})
}
