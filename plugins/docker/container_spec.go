package docker

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/api/types/volume"
	"github.com/moby/moby/client"
)

// networksOf returns the networks of a container by name.
func networksOf(c container.InspectResponse) map[string]*network.EndpointSettings {
	if c.NetworkSettings == nil {
		return nil
	}
	return c.NetworkSettings.Networks
}

// volumeMounts returns the mounts of a container that are volumes.
func volumeMounts(c container.InspectResponse) []container.MountPoint {
	var list []container.MountPoint
	for _, m := range c.Mounts {
		if m.Type == mount.TypeVolume && m.Name != "" {
			list = append(list, m)
		}
	}
	return list
}

// volumeNames returns the sorted names of a container's volumes, without duplicates.
func volumeNames(c container.InspectResponse) []string {
	var names []string
	for _, m := range volumeMounts(c) {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// isAnonymous reports whether a mount is a volume whose name Docker chose.
func isAnonymous(c container.InspectResponse, m container.MountPoint) bool {
	for _, b := range c.HostConfig.Binds {
		if strings.HasPrefix(b, m.Name+":") {
			return false
		}
	}
	return !slices.ContainsFunc(c.HostConfig.Mounts, func(o mount.Mount) bool { return o.Source == m.Name })
}

// sameStorage reports whether two volumes use the same external storage.
func sameStorage(a, b volume.Volume) bool {
	return (a.Driver != "local" || len(a.Options) > 0) && a.Driver == b.Driver && maps.Equal(a.Options, b.Options)
}

// containerSpec contains the options to create a container again.
type containerSpec struct {
	create client.ContainerCreateOptions
	// extraNetworks are the networks that the container joins after its creation. Docker before 25 accepts only one
	// network at creation.
	extraNetworks map[string]*network.EndpointSettings
}

// containerSpec returns the options to create container c on the destination.
func (mg *migration) containerSpec(ctx context.Context, c container.InspectResponse) (containerSpec, error) {
	config, host := *c.Config, *c.HostConfig
	config.Image = mg.image
	if name, err := mg.defaultHostname(ctx, c); err != nil {
		return containerSpec{}, err
	} else if config.Hostname == name {
		config.Hostname = ""
	}
	host.ContainerIDFile = ""
	if mg.CopyVolumes {
		withoutCopyUp(c, &host)
	}
	r := containerSpec{
		create: client.ContainerCreateOptions{
			Config: &config, HostConfig: &host, Name: mg.destination.arrivingName(mg.JobID),
		},
	}
	first := string(host.NetworkMode)
	for name, e := range networksOf(c) {
		if e.NetworkID == first { // the ID of a network differs on every host
			first, host.NetworkMode = name, container.NetworkMode(name)
		}
	}
	for name, e := range networksOf(c) {
		byDefault := first == "" || first == network.NetworkDefault || first == network.NetworkBridge
		if name == network.NetworkHost ||
			name == network.NetworkNone || name == network.NetworkBridge && byDefault {
			continue // the network mode is enough to join it
		}
		settings, err := mg.endpointSettings(ctx, c, name, e)
		switch {
		case err != nil:
			return r, err
		case name == first:
			r.create.NetworkingConfig = &network.NetworkingConfig{
				EndpointsConfig: map[string]*network.EndpointSettings{name: settings},
			}
		default:
			if r.extraNetworks == nil {
				r.extraNetworks = map[string]*network.EndpointSettings{}
			}
			r.extraNetworks[name] = settings
		}
	}
	return r, nil
}

// defaultHostname returns the host name that Docker assigns if the operator does not set one.
func (mg *migration) defaultHostname(ctx context.Context, c container.InspectResponse) (string, error) {
	if !c.HostConfig.NetworkMode.IsHost() {
		return shortID(c.ID), nil
	}
	info, err := mg.source.client.Info(ctx, client.InfoOptions{})
	return info.Info.Name, mg.withServer(mg.source, err)
}

// withoutCopyUp adds the name of every volume to a container's configuration. It also prevents Docker from filling
// empty volumes from the image, because the driver copies their contents from the source.
func withoutCopyUp(c container.InspectResponse, host *container.HostConfig) {
	host.Binds, host.Mounts = slices.Clone(host.Binds), slices.Clone(host.Mounts)
	for _, v := range volumeMounts(c) {
		named := false
		for i, b := range host.Binds {
			parts := strings.Split(b, ":")
			if len(parts) < 2 || parts[0] != v.Name || parts[1] != v.Destination {
				continue
			}
			named = true
			switch {
			case len(parts) == 2:
				host.Binds[i] += ":nocopy"
			case !slices.Contains(strings.Split(parts[2], ","), "nocopy"):
				host.Binds[i] += ",nocopy"
			}
		}
		for i, o := range host.Mounts {
			if o.Type != mount.TypeVolume || o.Target != v.Destination {
				continue
			}
			named = true
			options := mount.VolumeOptions{}
			if o.VolumeOptions != nil {
				options = *o.VolumeOptions
			}
			options.NoCopy = true
			host.Mounts[i].Source, host.Mounts[i].VolumeOptions = v.Name, &options
		}
		if !named {
			host.Mounts = append(host.Mounts, mount.Mount{
				Type: mount.TypeVolume, Source: v.Name, Target: v.Destination, ReadOnly: !v.RW,
				VolumeOptions: &mount.VolumeOptions{NoCopy: true},
			})
		}
	}
}

// endpointSettings returns the settings of a container in a network, without the values that Docker assigned.
func (mg *migration) endpointSettings(
	ctx context.Context, c container.InspectResponse, name string, e *network.EndpointSettings,
) (*network.EndpointSettings, error) {
	there, err := mg.destination.client.NetworkInspect(ctx, name, client.NetworkInspectOptions{})
	if err != nil {
		return nil, mg.withServer(mg.destination, err)
	}
	s := &network.EndpointSettings{
		Links: e.Links, DriverOpts: e.DriverOpts, GwPriority: e.GwPriority, IPAMConfig: e.IPAMConfig.Copy(),
	}
	for _, alias := range e.Aliases {
		if alias != shortID(c.ID) {
			s.Aliases = append(s.Aliases, alias)
		}
	}
	if s.IPAMConfig == nil {
		return s, nil
	}
	for _, address := range []*netip.Addr{&s.IPAMConfig.IPv4Address, &s.IPAMConfig.IPv6Address} {
		if !address.IsValid() {
			continue
		}
		if why := addressProblem(*address, there.Network); why != "" {
			mg.log.Warn("fixed address not available on the destination", "server", mg.destination.server, "network",
				name, "address", address.String(), "reason", why)
			*address = netip.Addr{}
		}
	}
	return s, nil
}

// addressProblem returns the reason why a network cannot assign an address, or an empty string.
func addressProblem(a netip.Addr, n network.Inspect) string {
	if !slices.ContainsFunc(n.IPAM.Config,
		func(c network.IPAMConfig) bool { return c.Subnet.IsValid() && c.Subnet.Contains(a) }) {
		return "it is outside of the network's subnets"
	}
	for _, c := range n.Containers {
		if c.IPv4Address.Addr() == a || c.IPv6Address.Addr() == a {
			return fmt.Sprintf("container %s uses it", c.Name)
		}
	}
	return ""
}
