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
	"github.com/moby/moby/client"

	"github.com/hubrelay/hubrelay/relay"
)

// prepareDestination creates the volumes and the container on the destination. While the source has its name, it
// removes the objects of earlier attempts and does not reuse them.
func (mg *migration) prepareDestination(ctx context.Context, f hostState) error {
	if f.src.inPlace == nil {
		return nil
	}
	if err := mg.removeUnfinished(ctx, f.dst); err != nil {
		return mg.withServer(mg.destination, err)
	}
	if err := mg.checkLeases(ctx); err != nil {
		return err
	}
	mg.driver.stepHook("create")
	c, err := mg.source.inspectContainer(ctx, mg.Instance)
	if err == nil && mg.CopyVolumes {
		mg.size = mg.volumeSizes(ctx, volumeNames(c))
	}
	if err == nil {
		err = mg.probeBindMounts(ctx, c)
	}
	if err == nil {
		err = mg.createVolumes(ctx, c)
	}
	mg.driver.stepHook("volumes created")
	if err == nil {
		err = mg.checkLeases(ctx) // Docker would create missing volumes, without the label of the job
	}
	if err == nil {
		err = mg.createArriving(ctx, c)
	}
	// An outdated process removes the objects that it created. Docker keeps objects in use.
	if superseded := mg.checkLeases(ctx); errors.Is(superseded, relay.ErrSuperseded) {
		for _, name := range []string{mg.destination.arrivingName(mg.JobID), mg.destination.workName(kindCarrier)} {
			_ = mg.destination.remove(ctx, name, true)
		}
		_ = mg.dropArrivingVolumes(ctx, labelLease+"="+strconv.FormatInt(mg.Lease, 10))
		return superseded
	}
	return err
}

func (mg *migration) createVolumes(ctx context.Context, c container.InspectResponse) error {
	for _, m := range volumeMounts(c) {
		if !mg.CopyVolumes && isAnonymous(c, m) {
			continue // Docker creates a new one
		}
		at, err := mg.source.client.VolumeInspect(ctx, m.Name, client.VolumeInspectOptions{})
		if err != nil {
			return mg.withServer(mg.source, err)
		}
		labels := maps.Clone(at.Volume.Labels)
		if labels == nil {
			labels = map[string]string{}
		}
		labels[labelJob], labels[labelLease] = mg.JobID, strconv.FormatInt(mg.Lease, 10)
		created, err := mg.destination.client.VolumeCreate(ctx, client.VolumeCreateOptions{
			Name: m.Name, Driver: at.Volume.Driver, DriverOpts: at.Volume.Options, Labels: labels,
		})
		if err != nil {
			return fmt.Errorf("create volume %s on server %s: %w", m.Name, mg.destination.server, err)
		}
		// Docker reports no error if another client created a volume after the check.
		if !mg.canUseVolume(at.Volume, created.Volume) {
			return fmt.Errorf(
				"server %s now has a volume %s; if its data is not needed, remove it there (docker volume rm)",
				mg.destination.server, m.Name,
			)
		}
	}
	return nil
}

func (mg *migration) createArriving(ctx context.Context, c container.InspectResponse) error {
	r, err := mg.containerSpec(ctx, c)
	if err != nil {
		return err
	}
	if _, err := mg.destination.client.ContainerCreate(ctx, r.create); err != nil {
		return fmt.Errorf("create the container on server %s: %w", mg.destination.server, err)
	}
	for name, settings := range r.extraNetworks {
		if _, err := mg.destination.client.NetworkConnect(ctx, name, client.NetworkConnectOptions{
			Container: r.create.Name, EndpointConfig: settings,
		}); err != nil {
			return fmt.Errorf("connect the container to network %s on server %s: %w", name, mg.destination.server, err)
		}
	}
	return nil
}

// volumesToCopy returns the sorted names of the volumes of the stopped instance. Volume i is at mountPath(i).
func (mg *migration) volumesToCopy(ctx context.Context, f hostState) ([]string, error) {
	c, err := mg.source.inspectContainer(ctx, f.src.leaving.name)
	return volumeNames(c), mg.withServer(mg.source, err)
}

// copyNote is the note of the copy step. A later call uses it to skip the copy if the new container is the same.
type copyNote struct {
	Arrival string            `json:"arrival"`
	Digests map[string]string `json:"digests"`
}

func (mg *migration) copyNote() []byte {
	if mg.digests == nil {
		return nil
	}
	data, err := json.Marshal(copyNote{Arrival: mg.arrivalID, Digests: mg.digests})
	if err != nil || len(data) > 64<<10 {
		return nil
	}
	return data
}

// reusableDigests returns the digests of the volumes that an earlier call copied to the same new container, or nil.
func (mg *migration) reusableDigests(arrival string) map[string]string {
	for _, p := range mg.Done {
		var n copyNote
		if p.Step == stepCopy && p.Completed && json.Unmarshal(p.Note, &n) == nil && n.Arrival == arrival {
			return n.Digests
		}
	}
	return nil
}

// nothingToCopy reports whether the volumes are not copied, or no longer, because the new container may be running.
func (mg *migration) nothingToCopy(f hostState) bool {
	return !mg.CopyVolumes || f.isMoved() || f.src.leaving != nil && f.src.leaving.kind == kindLeft
}

func (mg *migration) copyVolumes(ctx context.Context, f hostState) error {
	if mg.nothingToCopy(f) {
		return nil
	}
	if !f.hasArrived() {
		return fmt.Errorf("the container created on server %s has disappeared", mg.destination.server)
	}
	names, err := mg.volumesToCopy(ctx, f)
	if err == nil {
		err = mg.createCarriers(ctx, names)
	}
	if err != nil {
		return err
	}
	mg.arrivalID = f.src.leaving.restore.arrivalID
	if mg.digests = mg.reusableDigests(mg.arrivalID); mg.digests != nil {
		return nil
	}
	mg.digests = map[string]string{}
	progress := &progressReader{step: stepCopy, total: mg.size, report: mg.report}
	for i, name := range names {
		mg.driver.stepHook("copy volume")
		if mg.digests[name], err = mg.copyVolume(ctx, i, progress); err != nil {
			return fmt.Errorf("copy volume %s: %w", name, err)
		}
	}
	return nil
}

// copyVolume streams a volume from carrier to carrier and returns the digest of the stream.
func (mg *migration) copyVolume(ctx context.Context, i int, progress *progressReader) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from, err := mg.source.client.CopyFromContainer(ctx, mg.source.workName(kindCarrier), client.CopyFromContainerOptions{
		SourcePath: mountPath(i),
	})
	if err != nil {
		return "", mg.withServer(mg.source, err)
	}
	defer func() { _ = from.Content.Close() }() // all data has been read
	progress.reader = from.Content
	sum := newDigestReader(progress)
	_, err = mg.destination.client.CopyToContainer(ctx, mg.destination.workName(kindCarrier),
		client.CopyToContainerOptions{
			DestinationPath: carrierRoot, Content: sum, AllowOverwriteDirWithFile: true,
		})
	digest, read := sum.finish(err)
	switch failed := progress.readError(); {
	case failed != nil: // the cause of the error of the destination
		return "", mg.withServer(mg.source, failed)
	case read != nil && !errors.Is(read, err):
		return "", mg.withServer(mg.source, read)
	}
	return digest, mg.withServer(mg.destination, err)
}

// verifyCopy reads the volumes back from the destination and compares their digests.
func (mg *migration) verifyCopy(ctx context.Context, f hostState) error {
	if mg.nothingToCopy(f) || len(mg.digests) == 0 {
		return nil
	}
	if f.dst.carrier == nil {
		return fmt.Errorf("container %s on server %s has disappeared", mg.destination.workName(kindCarrier),
			mg.destination.server)
	}
	names, err := mg.volumesToCopy(ctx, f)
	if err != nil {
		return err
	}
	progress := &progressReader{step: stepVerify, total: mg.size, report: mg.report}
	for i, name := range names {
		from, err := mg.destination.client.CopyFromContainer(ctx, mg.destination.workName(kindCarrier),
			client.CopyFromContainerOptions{SourcePath: mountPath(i)})
		if err != nil {
			return mg.withServer(mg.destination, err)
		}
		progress.reader = from.Content
		sum := newDigestReader(progress)
		_, err = io.Copy(io.Discard, sum)
		digest, read := sum.finish(err)
		_ = from.Content.Close() // all data has been read
		if err := errors.Join(err, read); err != nil {
			return mg.withServer(mg.destination, err)
		}
		if digest != mg.digests[name] {
			return fmt.Errorf("the copy of volume %s on server %s differs from the data read on server %s; check the "+
				"disk of server %s", name, mg.destination.server, mg.source.server, mg.destination.server)
		}
	}
	return nil
}

// volumeSizes returns the total size of the volumes, or 0 if Docker does not return it within 5 s.
func (mg *migration) volumeSizes(ctx context.Context, names []string) (total int64) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	usage, err := mg.source.client.DiskUsage(ctx, client.DiskUsageOptions{Volumes: true, Verbose: true})
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
