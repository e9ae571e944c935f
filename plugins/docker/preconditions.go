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

// checkPreconditions checks that the destination meets the requirements of the instance, while the instance still runs.
// It also checks that the instance can be moved.
func (mg *migration) checkPreconditions(ctx context.Context, f hostState) error {
	switch {
	case f.dst.leaving != nil:
		return fmt.Errorf("a migration of the instance away from server %s has not finished; see container %s there",
			mg.destination.server, f.dst.leaving.name)
	case f.src.leaving != nil || f.isMoved():
		return nil
	case f.src.inPlace == nil:
		return fmt.Errorf("there is no container %s on server %s", mg.Instance, mg.source.server)
	case f.dst.inPlace != nil:
		return fmt.Errorf("server %s already has a container %s; remove or rename it", mg.destination.server, mg.Instance)
	}
	c, err := mg.source.inspectContainer(ctx, mg.Instance)
	if err != nil {
		return mg.withServer(mg.source, err)
	}
	if err := checkMovable(c); err != nil {
		return fmt.Errorf("the instance cannot be moved: %w", err)
	}
	for _, check := range []func(context.Context, container.InspectResponse) error{
		mg.checkPlatform, mg.checkNetworks, mg.checkPorts, mg.checkVolumes,
	} {
		if err := check(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// checkMovable rejects a container whose configuration depends on its host.
func checkMovable(c container.InspectResponse) error {
	h := c.HostConfig
	switch {
	case h.AutoRemove:
		return errors.New("it was started with --rm, so Docker removes it when it is stopped")
	case c.State.Paused:
		return errors.New("it is paused; unpause it first")
	case c.Config.Labels["com.docker.swarm.service.id"] != "":
		return errors.New("it belongs to a service of a swarm, which selects its host")
	case len(h.VolumesFrom) > 0:
		return fmt.Errorf("it uses the volumes of another container, %s", h.VolumesFrom[0])
	case len(h.Links) > 0:
		return fmt.Errorf("it is linked to another container by %s; use a network instead", h.Links[0])
	}
	for _, mode := range []string{string(h.NetworkMode), string(h.IpcMode), string(h.PidMode)} {
		if strings.HasPrefix(mode, "container:") {
			return fmt.Errorf("it shares a namespace with another container, %s",
				strings.TrimPrefix(mode, "container:"))
		}
	}
	return nil
}

func (mg *migration) checkPlatform(ctx context.Context, _ container.InspectResponse) error {
	from, err := mg.source.client.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return mg.withServer(mg.source, err)
	}
	to, err := mg.destination.client.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return mg.withServer(mg.destination, err)
	}
	if from.Os != to.Os || from.Arch != to.Arch {
		return fmt.Errorf("server %s runs %s on %s, but server %s runs %s on %s", mg.source.server, from.Os, from.Arch,
			mg.destination.server, to.Os, to.Arch)
	}
	return nil
}

func (mg *migration) checkNetworks(ctx context.Context, c container.InspectResponse) error {
	for name := range networksOf(c) {
		_, err := mg.destination.client.NetworkInspect(ctx, name, client.NetworkInspectOptions{})
		if errdefs.IsNotFound(err) {
			return fmt.Errorf("server %s has no network %s, which the instance uses; create it there",
				mg.destination.server, name)
		}
		if err != nil {
			return mg.withServer(mg.destination, err)
		}
	}
	return nil
}

// checkPorts checks only the ports of containers. A conflict with another program is detected when the instance starts.
func (mg *migration) checkPorts(ctx context.Context, c container.InspectResponse) error {
	if len(c.HostConfig.PortBindings) == 0 {
		return nil
	}
	list, err := mg.destination.client.ContainerList(ctx, client.ContainerListOptions{})
	if err != nil {
		return mg.withServer(mg.destination, err)
	}
	for port, bindings := range c.HostConfig.PortBindings {
		for _, b := range bindings {
			if other := portOwner(list.Items, port, b); other != "" {
				return fmt.Errorf("port %s/%s on server %s is used by container %s", b.HostPort, port.Proto(),
					mg.destination.server, other)
			}
		}
	}
	return nil
}

// portOwner returns the name of the container that uses a port of the host, or an empty string.
func portOwner(list []container.Summary, port network.Port, b network.PortBinding) string {
	for _, c := range list {
		for _, p := range c.Ports {
			if p.PublicPort == 0 || strconv.Itoa(int(p.PublicPort)) != b.HostPort || p.Type != string(port.Proto()) {
				continue
			}
			if everywhere := !p.IP.IsValid() || p.IP.IsUnspecified() || !b.HostIP.IsValid() ||
				b.HostIP.IsUnspecified(); everywhere || p.IP == b.HostIP {
				return strings.TrimPrefix(strings.Join(c.Names, ""), "/")
			}
		}
	}
	return ""
}

func (mg *migration) checkVolumes(ctx context.Context, c container.InspectResponse) error {
	for _, name := range volumeNames(c) {
		if strings.HasPrefix(name, claimPrefix) { // moving it would remove a claim
			return fmt.Errorf("volume %s belongs to the driver; give the instance another one", name)
		}
		r, err := mg.source.client.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
		if err != nil {
			return mg.withServer(mg.source, err)
		}
		if mg.CopyVolumes {
			if r.Volume.Driver != "local" || len(r.Volume.Options) > 0 {
				return fmt.Errorf(
					"volume %s has its own driver or options, so the location of its contents is unknown; "+
						"move the instance without copy_volumes, or give it a plain volume", name,
				)
			}
			if err := mg.checkUnshared(ctx, name); err != nil {
				return err
			}
		}
		if err := mg.checkFree(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// checkUnshared rejects a volume that another running container uses.
func (mg *migration) checkUnshared(ctx context.Context, volume string) error {
	list, err := mg.source.client.ContainerList(ctx, client.ContainerListOptions{
		Filters: client.Filters{}.Add("volume", volume),
	})
	if err != nil {
		return mg.withServer(mg.source, err)
	}
	for _, c := range list.Items {
		if !slices.Contains(c.Names, "/"+mg.Instance) {
			return fmt.Errorf("volume %s is also used by container %s; stop that container first", volume,
				strings.TrimPrefix(strings.Join(c.Names, ""), "/"))
		}
	}
	return nil
}

// checkFree rejects a destination that already has a volume of this name, unless the instance may use it.
func (mg *migration) checkFree(ctx context.Context, r client.VolumeInspectResult) error {
	there, err := mg.destination.client.VolumeInspect(ctx, r.Volume.Name, client.VolumeInspectOptions{})
	switch {
	case errdefs.IsNotFound(err):
		return nil
	case err != nil:
		return mg.withServer(mg.destination, err)
	case mg.canUseVolume(r.Volume, there.Volume):
		return nil
	}
	return fmt.Errorf(
		"server %s already has a volume %s; if its data is not needed, remove it there (docker volume rm)",
		mg.destination.server, r.Volume.Name,
	)
}

// canUseVolume reports whether the instance may use a volume of the destination: this job created it, or its contents
// do not matter.
func (mg *migration) canUseVolume(own, there volume.Volume) bool {
	return there.Labels[labelJob] == mg.JobID || sameStorage(own, there) || !mg.Stateful && !mg.CopyVolumes
}

// probeBindMounts creates and removes a container with the host paths of the instance, because Docker rejects missing
// paths.
func (mg *migration) probeBindMounts(ctx context.Context, c container.InspectResponse) error {
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
		err := mg.destination.createCarrier(ctx, []mount.Mount{m})
		if err != nil && strings.Contains(err.Error(), "bind source path does not exist") {
			return fmt.Errorf("server %s has no %s, which the instance mounts or uses as a device; create it there",
				mg.destination.server, path)
		}
		if err == nil {
			err = mg.destination.remove(ctx, mg.destination.workName(kindCarrier), true)
		}
		if err != nil {
			return mg.withServer(mg.destination, err)
		}
	}
	return nil
}
