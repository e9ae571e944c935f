package docker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/api/types/volume"
	"github.com/moby/moby/client"
)

// check finds what the destination cannot give, while the instance still runs.
func (v *move) check(ctx context.Context, f found) error {
	switch {
	case f.dst.away != nil:
		return fmt.Errorf("a migration of the instance away from server %s is not over, see container %s there", v.dst.server, f.dst.away.name)
	case f.src.away != nil || f.moved():
		return nil
	case f.src.home == nil:
		return fmt.Errorf("there is no container %s on server %s", v.Instance, v.src.server)
	case f.dst.home != nil:
		return fmt.Errorf("server %s has a container %s already; remove or rename it", v.dst.server, v.Instance)
	}
	c, err := v.src.inspect(ctx, v.Instance)
	if err != nil {
		return v.at(v.src, err)
	}
	if err := movable(c); err != nil {
		return fmt.Errorf("the instance cannot be moved: %w", err)
	}
	for _, check := range []func(context.Context, container.InspectResponse) error{
		v.checkPlatform, v.checkNetworks, v.checkPorts, v.checkVolumes,
	} {
		if err := check(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// movable refuses a container whose configuration means something only where it is.
func movable(c container.InspectResponse) error {
	h := c.HostConfig
	switch {
	case h.AutoRemove:
		return errors.New("it was started with --rm, so that Docker removes it when it is stopped")
	case c.State.Paused:
		return errors.New("it is paused; unpause it first")
	case c.Config.Labels["com.docker.swarm.service.id"] != "":
		return errors.New("it belongs to a service of a swarm, which decides itself where it runs")
	case len(h.VolumesFrom) > 0:
		return fmt.Errorf("it takes volumes from another container, %s", h.VolumesFrom[0])
	case len(h.Links) > 0:
		return fmt.Errorf("it is linked to another container by %s; use a network instead", h.Links[0])
	}
	for _, mode := range []string{string(h.NetworkMode), string(h.IpcMode), string(h.PidMode)} {
		if strings.HasPrefix(mode, "container:") {
			return fmt.Errorf("it shares a namespace with another container, %s", strings.TrimPrefix(mode, "container:"))
		}
	}
	return nil
}

func (v *move) checkPlatform(ctx context.Context, _ container.InspectResponse) error {
	from, err := v.src.api.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return v.at(v.src, err)
	}
	to, err := v.dst.api.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return v.at(v.dst, err)
	}
	if from.Os != to.Os || from.Arch != to.Arch {
		return fmt.Errorf("server %s runs %s on %s, server %s has %s on %s", v.src.server, from.Os, from.Arch, v.dst.server, to.Os, to.Arch)
	}
	return nil
}

func (v *move) checkNetworks(ctx context.Context, c container.InspectResponse) error {
	for name := range networksOf(c) {
		_, err := v.dst.api.NetworkInspect(ctx, name, client.NetworkInspectOptions{})
		if errdefs.IsNotFound(err) {
			return fmt.Errorf("server %s has no network %s, which the instance is in; make it there", v.dst.server, name)
		}
		if err != nil {
			return v.at(v.dst, err)
		}
	}
	return nil
}

// checkPorts knows the ports of containers alone. One that another program has is found when the instance starts.
func (v *move) checkPorts(ctx context.Context, c container.InspectResponse) error {
	if len(c.HostConfig.PortBindings) == 0 {
		return nil
	}
	list, err := v.dst.api.ContainerList(ctx, client.ContainerListOptions{})
	if err != nil {
		return v.at(v.dst, err)
	}
	for port, bindings := range c.HostConfig.PortBindings {
		for _, b := range bindings {
			if other := publisher(list.Items, port, b); other != "" {
				return fmt.Errorf("port %s/%s is taken on server %s by container %s", b.HostPort, port.Proto(), v.dst.server, other)
			}
		}
	}
	return nil
}

// publisher names the container that has a host's port.
func publisher(list []container.Summary, port network.Port, b network.PortBinding) string {
	for _, c := range list {
		for _, p := range c.Ports {
			if p.PublicPort == 0 || strconv.Itoa(int(p.PublicPort)) != b.HostPort || p.Type != string(port.Proto()) {
				continue
			}
			if everywhere := !p.IP.IsValid() || p.IP.IsUnspecified() || !b.HostIP.IsValid() || b.HostIP.IsUnspecified(); everywhere || p.IP == b.HostIP {
				return strings.TrimPrefix(strings.Join(c.Names, ""), "/")
			}
		}
	}
	return ""
}

func (v *move) checkVolumes(ctx context.Context, c container.InspectResponse) error {
	for _, name := range volumeNames(c) {
		if strings.HasPrefix(name, claims) { // moving it would take a claim away
			return fmt.Errorf("volume %s is the driver's own; give the instance another one", name)
		}
		r, err := v.src.api.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
		if err != nil {
			return v.at(v.src, err)
		}
		if v.CopyVolumes {
			if r.Volume.Driver != "local" || len(r.Volume.Options) > 0 {
				return fmt.Errorf("volume %s has a driver or options of its own, so that it is not known where its contents are; move the instance without copy_volumes, or give it a plain volume", name)
			}
			if err := v.checkAlone(ctx, name); err != nil {
				return err
			}
		}
		if err := v.checkFree(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// checkAlone refuses to copy what somebody else may be writing.
func (v *move) checkAlone(ctx context.Context, volume string) error {
	list, err := v.src.api.ContainerList(ctx, client.ContainerListOptions{Filters: client.Filters{}.Add("volume", volume)})
	if err != nil {
		return v.at(v.src, err)
	}
	for _, c := range list.Items {
		if !slices.Contains(c.Names, "/"+v.Instance) {
			return fmt.Errorf("volume %s is in use by container %s too; stop that first", volume, strings.TrimPrefix(strings.Join(c.Names, ""), "/"))
		}
	}
	return nil
}

// checkFree refuses a destination that has a volume of this name, unless its contents do not matter.
func (v *move) checkFree(ctx context.Context, r client.VolumeInspectResult) error {
	there, err := v.dst.api.VolumeInspect(ctx, r.Volume.Name, client.VolumeInspectOptions{})
	switch {
	case errdefs.IsNotFound(err):
		return nil
	case err != nil:
		return v.at(v.dst, err)
	case v.usable(r.Volume, there.Volume):
		return nil
	}
	return fmt.Errorf("server %s has a volume %s already; if nobody needs what is in it, remove it there (docker volume rm)", v.dst.server, r.Volume.Name)
}

// usable tells whether the instance may have a volume of the destination in place of its own: this job has made it, or its
// contents do not matter.
func (v *move) usable(own, there volume.Volume) bool {
	return there.Labels[labelJob] == v.JobID || shared(own, there) || !v.Stateful && !v.CopyVolumes
}

// probe makes and removes a container that mounts the paths of the host that the instance needs: Docker refuses those
// that do not exist.
func (v *move) probe(ctx context.Context, c container.InspectResponse) error {
	paths := map[string]bool{}
	for _, m := range c.Mounts {
		if m.Type == mount.TypeBind {
			paths[m.Source] = true
		}
	}
	for _, d := range c.HostConfig.Devices {
		paths[d.PathOnHost] = true
	}
	for path := range paths {
		m := mount.Mount{Type: mount.TypeBind, Source: path, Target: "/hubrelay", ReadOnly: true}
		err := v.dst.create(ctx, kindCarrier, v.image, []mount.Mount{m})
		if err != nil && strings.Contains(err.Error(), "bind source path does not exist") {
			return fmt.Errorf("server %s has no %s, which the instance mounts or uses as a device; make it there", v.dst.server, path)
		}
		if err == nil {
			err = v.dst.remove(ctx, v.dst.work(kindCarrier), true)
		}
		if err != nil {
			return v.at(v.dst, err)
		}
	}
	return nil
}
