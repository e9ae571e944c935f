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

// The driver detects missing requirements on the destination while the instance runs, and leaves nothing there.
func TestMigrate_RejectsMissingRequirements(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change  func(*client.ContainerCreateOptions)
		prepare func(r *rig)
		texts   []string
	}{
		"missing network": {
			change: func(o *client.ContainerCreateOptions) { o.HostConfig.NetworkMode = "only-on-a" },
			texts:  []string{"server b has no network only-on-a"},
		},
		"missing path": {
			change: func(o *client.ContainerCreateOptions) {
				o.HostConfig.Mounts = append(o.HostConfig.Mounts, mount.Mount{
					Type: mount.TypeBind, Source: hostA.dir + "/bound", Target: "/bound",
				})
			},
			prepare: func(r *rig) { r.rename(hostA.dir+"/bound", hostA.dir+"/gone") },
			texts:   []string{"server b has no ", "/bound, which the instance mounts"},
		},
		"container name in use": {
			prepare: func(r *rig) { r.other(r.b, func(o *client.ContainerCreateOptions) { o.Name = r.instance }) },
			texts:   []string{"server b already has a container", "remove or rename it"},
		},
		"volume name in use": {
			prepare: func(r *rig) { r.createVolume(r.b, client.VolumeCreateOptions{Name: r.volume}) },
			texts:   []string{"server b already has a volume", "docker volume rm"},
		},
		"volume used by another container": {
			prepare: func(r *rig) {
				r.other(r.a, func(o *client.ContainerCreateOptions) {
					o.HostConfig.Mounts = []mount.Mount{{Type: mount.TypeVolume, Source: r.volume, Target: "/data"}}
				})
			},
			texts: []string{"is also used by container", "-other; stop"},
		},
		"volume with options": {
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
			texts: []string{"-tmp has its own driver or options"},
		},
		"volume is a claim": {
			change: func(o *client.ContainerCreateOptions) {
				o.HostConfig.Mounts = append(o.HostConfig.Mounts, mount.Mount{
					Type: mount.TypeVolume, Source: "hubrelay.lease." + o.Name + "-other.7", Target: "/claim",
				})
			},
			texts: []string{"hubrelay.lease.", "belongs to the driver"},
		},
		"--rm": {
			change: func(o *client.ContainerCreateOptions) {
				o.HostConfig.AutoRemove, o.HostConfig.RestartPolicy = true, container.RestartPolicy{}
			},
			texts: []string{"--rm"},
		},
		"namespace of another container": {
			change: func(o *client.ContainerCreateOptions) { o.HostConfig.PidMode = "container:" + peerContainer },
			texts:  []string{"shares a namespace with another container"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if hostA == nil {
				t.Skipf("%s is not set: make test-docker", dockerVariable)
			}
			prepareHostA(t)
			r := newRig(t, c.change)
			if c.prepare != nil {
				c.prepare(r)
			}
			want, before, there := r.listing(r.a), r.inspect(r.a), r.left(r.b)
			err := r.migrate()
			if err == nil {
				t.Fatal("got no error")
			}
			for _, text := range c.texts {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("got error %q, want it to contain %q", err, text)
				}
			}
			after := r.inspect(r.a)
			if after.ID != before.ID || after.State.StartedAt != before.State.StartedAt || !after.State.Running ||
				r.listing(r.a) != want {
				t.Errorf("the instance has changed: %+v", after.State)
			}
			if now := r.left(r.b); strings.Join(now, "\n") != strings.Join(there, "\n") {
				t.Errorf("got %q on the destination, want %q", now, there)
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

// other starts another container.
func (r *rig) other(d *daemon, change func(*client.ContainerCreateOptions)) {
	r.t.Helper()
	ctx := r.t.Context()
	if d == hostB {
		r.copyImage(d)
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

// copyImage copies the image from host a to another host.
func (r *rig) copyImage(d *daemon) {
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

// peerContainer is a container on host a whose namespace another container shares.
const peerContainer = "peer"

var prepareHostAOnce sync.Once

// prepareHostA creates a network, a directory and a container that exist only on host a.
func prepareHostA(t *testing.T) {
	t.Helper()
	prepareHostAOnce.Do(func() {
		ctx := context.Background()
		_, err := hostA.api.NetworkCreate(ctx, "only-on-a", client.NetworkCreateOptions{Driver: "bridge"})
		err = errors.Join(err, os.MkdirAll(hostA.dir+"/bound", 0o700))
		if err != nil {
			t.Fatal(err)
		}
		_, err = hostA.api.ContainerCreate(ctx, client.ContainerCreateOptions{
			Name: peerContainer, Config: &container.Config{Image: imageName},
			HostConfig: &container.HostConfig{NetworkMode: "none"},
		})
		if err == nil {
			_, err = hostA.api.ContainerStart(ctx, peerContainer, client.ContainerStartOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	})
}
