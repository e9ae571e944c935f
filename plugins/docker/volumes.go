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

// prepareDestination creates the volumes and the container on the destination. While the source has its name, it
// removes the objects of earlier attempts and does not reuse them.
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
	v.driver.stepHook("create")
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
	v.driver.stepHook("volumes created")
	if err == nil {
		err = v.checkLeases(ctx) // Docker would create missing volumes, without the label of the job
	}
	if err == nil {
		err = v.createArriving(ctx, c)
	}
	// An outdated process removes the objects that it created. Docker keeps objects in use.
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
			continue // Docker creates a new one
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
		created, err := v.destination.client.VolumeCreate(ctx, client.VolumeCreateOptions{
			Name: m.Name, Driver: at.Volume.Driver, DriverOpts: at.Volume.Options, Labels: labels,
		})
		if err != nil {
			return fmt.Errorf("create volume %s on server %s: %w", m.Name, v.destination.server, err)
		}
		// Docker reports no error if another client created a volume after the check.
		if !v.canUseVolume(at.Volume, created.Volume) {
			return fmt.Errorf(
				"server %s now has a volume %s; if its data is not needed, remove it there (docker volume rm)",
				v.destination.server, m.Name,
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
		return fmt.Errorf("create the container on server %s: %w", v.destination.server, err)
	}
	for name, settings := range r.extraNetworks {
		if _, err := v.destination.client.NetworkConnect(ctx, name, client.NetworkConnectOptions{
			Container: r.create.Name, EndpointConfig: settings,
		}); err != nil {
			return fmt.Errorf("connect the container to network %s on server %s: %w", name, v.destination.server, err)
		}
	}
	return nil
}

// createContainer creates a container that is never started.
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

// createCarriers creates a carrier on each host and returns the names of the volumes. A carrier mounts only the
// volumes, and at other paths than the instance, because the paths of the instance may be read-only or nested.
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
		carrier  *containerRef
		image    string
		readOnly bool
	}{{v.source, f.src.carrier, c.Image, true}, {v.destination, f.dst.carrier, arriving.Image, false}} {
		if side.carrier != nil {
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

// carrierRoot is the directory in a carrier that contains the volumes. The driver extracts archives into this directory
// and not into the directory of the volume, because Docker does not change the owner and mode of the target directory.
const carrierRoot = "/hubrelay"

func mountPath(i int) string { return carrierRoot + "/" + strconv.Itoa(i) }

// copyNote is the note of the copy step. A later call uses it to skip the copy if the new container is the same.
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

// reusableDigests returns the digests of the volumes that an earlier call copied to the same new container, or nil.
func (v *migration) reusableDigests(arrival string) map[string]string {
	for _, p := range v.Done {
		var n copyNote
		if p.Step == stepCopy && p.Completed && json.Unmarshal(p.Note, &n) == nil && n.Arrival == arrival {
			return n.Digests
		}
	}
	return nil
}

// nothingToCopy reports whether the volumes are not copied, or no longer, because the new container may be running.
func (v *migration) nothingToCopy(f hostState) bool {
	return !v.CopyVolumes || f.isMoved() || f.src.leaving != nil && f.src.leaving.kind == kindLeft
}

func (v *migration) copyVolumes(ctx context.Context, f hostState) error {
	if v.nothingToCopy(f) {
		return nil
	}
	if !f.hasArrived() {
		return fmt.Errorf("the container created on server %s has disappeared", v.destination.server)
	}
	names, err := v.createCarriers(ctx, f)
	if err != nil {
		return err
	}
	v.arrivalID = f.src.leaving.restore.arrivalID
	if v.digests = v.reusableDigests(v.arrivalID); v.digests != nil {
		return nil
	}
	v.digests = map[string]string{}
	progress := &progressReader{step: stepCopy, total: v.size, report: v.report}
	for i, name := range names {
		v.driver.stepHook("copy volume")
		if v.digests[name], err = v.copyVolume(ctx, i, progress); err != nil {
			return fmt.Errorf("copy volume %s: %w", name, err)
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
	defer func() { _ = from.Content.Close() }() // all data has been read
	progress.reader = from.Content
	sum := newDigestReader(progress)
	_, err = v.destination.client.CopyToContainer(ctx, v.destination.workName(kindCarrier),
		client.CopyToContainerOptions{
			DestinationPath: carrierRoot, Content: sum, AllowOverwriteDirWithFile: true,
		})
	digest, read := sum.finish(err)
	switch failed := progress.readError(); {
	case failed != nil: // the cause of the error of the destination
		return "", v.withServer(v.source, failed)
	case read != nil && !errors.Is(read, err):
		return "", v.withServer(v.source, read)
	}
	return digest, v.withServer(v.destination, err)
}

// verifyCopy reads the volumes back from the destination and compares their digests.
func (v *migration) verifyCopy(ctx context.Context, f hostState) error {
	if v.nothingToCopy(f) || len(v.digests) == 0 {
		return nil
	}
	if f.dst.carrier == nil {
		return fmt.Errorf("container %s on server %s has disappeared", v.destination.workName(kindCarrier),
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
		sum := newDigestReader(progress)
		_, err = io.Copy(io.Discard, sum)
		digest, read := sum.finish(err)
		_ = from.Content.Close() // all data has been read
		if err := errors.Join(err, read); err != nil {
			return v.withServer(v.destination, err)
		}
		if digest != v.digests[name] {
			return fmt.Errorf("the copy of volume %s on server %s differs from the data read on server %s; check the "+
				"disk of server %s", name, v.destination.server, v.source.server, v.destination.server)
		}
	}
	return nil
}

// volumeSizes returns the total size of the volumes, or 0 if Docker does not return it within 5 s.
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
