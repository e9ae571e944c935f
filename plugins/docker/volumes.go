package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/hubrelay/hubrelay/relay"
)

// prepareDestination creates the volumes and the container at the destination. It reuses nothing of an earlier attempt
// while the source is in its place.
func (v *migration) prepareDestination(ctx context.Context, f hostState) error {
	if f.src.inPlace == nil {
		return nil
	}
	if err := v.removeUnfinished(ctx, f.dst); err != nil {
		return v.withServer(v.destination, err)
	}
	if err := v.checkLeases(ctx); err != nil {
		return err
	}
	v.driver.between("create")
	c, err := v.source.inspectContainer(ctx, v.Instance)
	if err == nil && v.CopyVolumes {
		v.size = v.volumeSizes(ctx, volumeNames(c))
	}
	if err == nil {
		err = v.probeBindMounts(ctx, c)
	}
	if err == nil {
		err = v.createVolumes(ctx, c)
	}
	v.driver.between("volumes created")
	if err == nil {
		err = v.checkLeases(ctx) // new volumes would be created for missing ones, without an owner
	}
	if err == nil {
		err = v.createArriving(ctx, c)
	}
	// An outdated process removes what it created. Docker keeps objects in use.
	if superseded := v.checkLeases(ctx); errors.Is(superseded, relay.ErrSuperseded) {
		for _, name := range []string{v.destination.arrivingName(v.JobID), v.destination.workName(kindCarrier)} {
			_ = v.destination.remove(ctx, name, true)
		}
		_ = v.dropArrivingVolumes(ctx, labelLease+"="+strconv.FormatInt(v.Lease, 10))
		return superseded
	}
	return err
}

func (v *migration) createVolumes(ctx context.Context, c container.InspectResponse) error {
	for _, m := range volumeMounts(c) {
		if !v.CopyVolumes && isAnonymous(c, m) {
			continue // Docker makes a new one
		}
		at, err := v.source.client.VolumeInspect(ctx, m.Name, client.VolumeInspectOptions{})
		if err != nil {
			return v.withServer(v.source, err)
		}
		labels := maps.Clone(at.Volume.Labels)
		if labels == nil {
			labels = map[string]string{}
		}
		labels[labelJob], labels[labelLease] = v.JobID, strconv.FormatInt(v.Lease, 10)
		made, err := v.destination.client.VolumeCreate(ctx, client.VolumeCreateOptions{
			Name: m.Name, Driver: at.Volume.Driver, DriverOpts: at.Volume.Options, Labels: labels,
		})
		if err != nil {
			return fmt.Errorf("the volume %s cannot be made on server %s: %w", m.Name, v.destination.server, err)
		}
		// Docker reports no error if another client created a volume after the check.
		if !v.canUseVolume(at.Volume, made.Volume) {
			return fmt.Errorf(
				"server %s has a volume %s now; if its data is not needed, remove it there (docker "+
					"volume rm)", v.destination.server, m.Name,
			)
		}
	}
	return nil
}

func (v *migration) createArriving(ctx context.Context, c container.InspectResponse) error {
	r, err := v.containerSpec(ctx, c)
	if err != nil {
		return err
	}
	if _, err := v.destination.client.ContainerCreate(ctx, r.create); err != nil {
		return fmt.Errorf("the container cannot be made on server %s: %w", v.destination.server, err)
	}
	for name, settings := range r.extraNetworks {
		if _, err := v.destination.client.NetworkConnect(ctx, name, client.NetworkConnectOptions{
			Container: r.create.Name, EndpointConfig: settings,
		}); err != nil {
			return fmt.Errorf("the container cannot join network %s on server %s: %w", name, v.destination.server, err)
		}
	}
	return nil
}

// createContainer makes a container that is never started.
func (h *dockerHost) createContainer(ctx context.Context, kind, image string, mounts []mount.Mount) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := h.client.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name: h.workName(kind),
		Config: &container.Config{
			Image: image, Entrypoint: []string{"/hubrelay"},
			Labels: map[string]string{labelLease: strconv.FormatInt(h.lease, 10)},
		},
		HostConfig: &container.HostConfig{NetworkMode: container.NetworkMode("none"), Mounts: mounts},
	})
	return err
}

// createCarriers creates a container on each side that mounts only the volumes, at its own paths, because the paths of
// the instance may be read-only or nested.
func (v *migration) createCarriers(ctx context.Context, f hostState) ([]string, error) {
	c, err := v.source.inspectContainer(ctx, f.src.leaving.name)
	if err != nil {
		return nil, v.withServer(v.source, err)
	}
	arriving, err := v.destination.inspectContainer(ctx, f.dst.arriving.name)
	if err != nil {
		return nil, v.withServer(v.destination, err)
	}
	names := volumeNames(c)
	for _, side := range []struct {
		h        *dockerHost
		box      *containerRef
		image    string
		readOnly bool
	}{{v.source, f.src.carrier, c.Image, true}, {v.destination, f.dst.carrier, arriving.Image, false}} {
		if side.box != nil {
			continue
		}
		var mounts []mount.Mount
		for i, name := range names {
			mounts = append(mounts, mount.Mount{
				Type: mount.TypeVolume, Source: name, Target: mountPath(i), ReadOnly: side.readOnly,
				VolumeOptions: &mount.VolumeOptions{NoCopy: true},
			})
		}
		if err := v.checkLeases(ctx); err != nil {
			return nil, err
		}
		if err := side.h.createContainer(ctx, kindCarrier, side.image, mounts); err != nil {
			return nil, v.withServer(side.h, err)
		}
		if err := v.checkLeases(ctx); err != nil {
			return nil, errors.Join(err, side.h.remove(ctx, side.h.workName(kindCarrier), true))
		}
	}
	return names, nil
}

// places contains the volumes in a carrier. Files are written to it and not to the volume's own directory, because
// Docker does not change the owner and mode of the directory that it writes to.
const places = "/hubrelay"

func mountPath(i int) string { return places + "/" + strconv.Itoa(i) }

// copyNote is stored by the copy step for a repetition. It is valid only for the same two containers.
type copyNote struct {
	Arrival string            `json:"arrival"`
	Digests map[string]string `json:"digests"`
}

func (v *migration) copyNote() []byte {
	if v.digests == nil {
		return nil
	}
	data, err := json.Marshal(copyNote{Arrival: v.arrivalID, Digests: v.digests})
	if err != nil || len(data) > 64<<10 {
		return nil
	}
	return data
}

// reusableDigests finds what an earlier call has copied.
func (v *migration) reusableDigests(arrival string) map[string]string {
	for _, p := range v.Done {
		var n copyNote
		if p.Step == stepCopy && p.Completed && json.Unmarshal(p.Note, &n) == nil && n.Arrival == arrival {
			return n.Digests
		}
	}
	return nil
}

func (v *migration) nothingToCopy(f hostState) bool {
	return !v.CopyVolumes || f.isMoved() || f.src.leaving != nil && f.src.leaving.kind == kindLeft
}

func (v *migration) copyVolumes(ctx context.Context, f hostState) error {
	if v.nothingToCopy(f) {
		return nil
	}
	if !f.hasArrived() {
		return fmt.Errorf("the container that was made on server %s has vanished", v.destination.server)
	}
	names, err := v.createCarriers(ctx, f)
	if err != nil {
		return err
	}
	v.arrivalID = f.src.leaving.ticket.arrivalID
	if v.digests = v.reusableDigests(v.arrivalID); v.digests != nil {
		return nil
	}
	v.digests = map[string]string{}
	progress := &progressReader{step: stepCopy, total: v.size, report: v.report}
	for i, name := range names {
		v.driver.between("copy volume")
		if v.digests[name], err = v.copyVolume(ctx, i, progress); err != nil {
			return fmt.Errorf("volume %s could not be copied: %w", name, err)
		}
	}
	return nil
}

// copyVolume streams a volume from carrier to carrier and returns the digest of the stream.
func (v *migration) copyVolume(ctx context.Context, i int, progress *progressReader) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from, err := v.source.client.CopyFromContainer(ctx, v.source.workName(kindCarrier), client.CopyFromContainerOptions{
		SourcePath: mountPath(i),
	})
	if err != nil {
		return "", v.withServer(v.source, err)
	}
	defer func() { _ = from.Content.Close() }() // what matters has been read
	progress.reader = from.Content
	sum := newSummer(progress)
	_, err = v.destination.client.CopyToContainer(ctx, v.destination.workName(kindCarrier),
		client.CopyToContainerOptions{
			DestinationPath: places, Content: sum, AllowOverwriteDirWithFile: true,
		})
	digest, read := sum.finish(err)
	switch failed := progress.readError(); {
	case failed != nil: // this is why the destination failed
		return "", v.withServer(v.source, failed)
	case read != nil && !errors.Is(read, err):
		return "", v.withServer(v.source, read)
	}
	return digest, v.withServer(v.destination, err)
}

// verifyCopy reads back what the destination has.
func (v *migration) verifyCopy(ctx context.Context, f hostState) error {
	if v.nothingToCopy(f) || len(v.digests) == 0 {
		return nil
	}
	if f.dst.carrier == nil {
		return fmt.Errorf("the container %s on server %s has vanished", v.destination.workName(kindCarrier),
			v.destination.server)
	}
	names, err := v.createCarriers(ctx, f)
	if err != nil {
		return err
	}
	progress := &progressReader{step: stepVerify, total: v.size, report: v.report}
	for i, name := range names {
		from, err := v.destination.client.CopyFromContainer(ctx, v.destination.workName(kindCarrier),
			client.CopyFromContainerOptions{SourcePath: mountPath(i)})
		if err != nil {
			return v.withServer(v.destination, err)
		}
		progress.reader = from.Content
		sum := newSummer(progress)
		_, err = io.Copy(io.Discard, sum)
		digest, read := sum.finish(err)
		_ = from.Content.Close() // what matters has been read
		if err := errors.Join(err, read); err != nil {
			return v.withServer(v.destination, err)
		}
		if digest != v.digests[name] {
			return fmt.Errorf("volume %s is not on server %s as it was read on server %s; look at the disk there", name,
				v.destination.server, v.source.server)
		}
	}
	return nil
}

// volumeSizes asks how much there is to copy, if Docker can tell that soon.
func (v *migration) volumeSizes(ctx context.Context, names []string) (total int64) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	usage, err := v.source.client.DiskUsage(ctx, client.DiskUsageOptions{Volumes: true, Verbose: true})
	if err != nil {
		return 0
	}
	for _, item := range usage.Volumes.Items {
		if item.UsageData != nil && slices.Contains(names, item.Name) {
			total += max(item.UsageData.Size, 0)
		}
	}
	return total
}
