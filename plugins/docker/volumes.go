package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/hubrelay/hubrelay/relay"
)

// prepare makes the volumes and the container at the destination. Nothing of an earlier attempt is used, as long as the
// source is in its place.
func (v *move) prepare(ctx context.Context, f found) error {
	if f.src.home == nil {
		return nil
	}
	if err := v.sweep(ctx, f.dst); err != nil {
		return v.at(v.dst, err)
	}
	if err := v.guard(ctx); err != nil {
		return err
	}
	v.driver.between("create")
	c, err := v.src.inspect(ctx, v.Instance)
	if err == nil && v.CopyVolumes {
		v.size = v.volumeSizes(ctx, volumeNames(c))
	}
	if err == nil {
		err = v.probe(ctx, c)
	}
	if err == nil {
		err = v.createVolumes(ctx, c)
	}
	v.driver.between("volumes created")
	if err == nil {
		err = v.guard(ctx) // volumes that are gone would be made anew, and nobody would know whose they are
	}
	if err == nil {
		err = v.createArriving(ctx, c)
	}
	// A process that was overtaken meanwhile takes back what it has made; Docker keeps what is in use.
	if superseded := v.guard(ctx); errors.Is(superseded, relay.ErrSuperseded) {
		for _, name := range []string{v.dst.arriving(v.JobID), v.dst.work(kindCarrier)} {
			_ = v.dst.remove(ctx, name, true)
		}
		_ = v.dropArrivingVolumes(ctx, labelLease+"="+strconv.FormatInt(v.Lease, 10))
		return superseded
	}
	return err
}

func (v *move) createVolumes(ctx context.Context, c container.InspectResponse) error {
	for _, m := range volumeMounts(c) {
		if !v.CopyVolumes && anonymous(c, m) {
			continue // Docker makes a new one
		}
		at, err := v.src.api.VolumeInspect(ctx, m.Name, client.VolumeInspectOptions{})
		if err != nil {
			return v.at(v.src, err)
		}
		labels := maps.Clone(at.Volume.Labels)
		if labels == nil {
			labels = map[string]string{}
		}
		labels[labelJob], labels[labelLease] = v.JobID, strconv.FormatInt(v.Lease, 10)
		made, err := v.dst.api.VolumeCreate(ctx, client.VolumeCreateOptions{
			Name: m.Name, Driver: at.Volume.Driver, DriverOpts: at.Volume.Options, Labels: labels,
		})
		if err != nil {
			return fmt.Errorf("the volume %s cannot be made on server %s: %w", m.Name, v.dst.server, err)
		}
		// Docker says nothing where somebody has made one since the check.
		if !v.usable(at.Volume, made.Volume) {
			return fmt.Errorf("server %s has got a volume %s meanwhile; if nobody needs what is in it, remove it there (docker volume rm)", v.dst.server, m.Name)
		}
	}
	return nil
}

func (v *move) createArriving(ctx context.Context, c container.InspectResponse) error {
	r, err := v.recipe(ctx, c)
	if err != nil {
		return err
	}
	if _, err := v.dst.api.ContainerCreate(ctx, r.create); err != nil {
		return fmt.Errorf("the container cannot be made on server %s: %w", v.dst.server, err)
	}
	for name, settings := range r.more {
		if _, err := v.dst.api.NetworkConnect(ctx, name, client.NetworkConnectOptions{Container: r.create.Name, EndpointConfig: settings}); err != nil {
			return fmt.Errorf("the container cannot join network %s on server %s: %w", name, v.dst.server, err)
		}
	}
	return nil
}

// create makes a container that is never started.
func (h *host) create(ctx context.Context, kind, image string, mounts []mount.Mount) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := h.api.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name:       h.work(kind),
		Config:     &container.Config{Image: image, Entrypoint: []string{"/hubrelay"}, Labels: map[string]string{labelLease: strconv.FormatInt(h.lease, 10)}},
		HostConfig: &container.HostConfig{NetworkMode: container.NetworkMode("none"), Mounts: mounts},
	})
	return err
}

// carriers makes a container at each side that has the volumes, and nothing else, at places of their own: the instance's
// own may be read-only or lie in one another.
func (v *move) carriers(ctx context.Context, f found) ([]string, error) {
	c, err := v.src.inspect(ctx, f.src.away.name)
	if err != nil {
		return nil, v.at(v.src, err)
	}
	arriving, err := v.dst.inspect(ctx, f.dst.arriving.name)
	if err != nil {
		return nil, v.at(v.dst, err)
	}
	names := volumeNames(c)
	for _, side := range []struct {
		h        *host
		box      *box
		image    string
		readOnly bool
	}{{v.src, f.src.carrier, c.Image, true}, {v.dst, f.dst.carrier, arriving.Image, false}} {
		if side.box != nil {
			continue
		}
		var mounts []mount.Mount
		for i, name := range names {
			mounts = append(mounts, mount.Mount{
				Type: mount.TypeVolume, Source: name, Target: place(i), ReadOnly: side.readOnly, VolumeOptions: &mount.VolumeOptions{NoCopy: true},
			})
		}
		if err := v.guard(ctx); err != nil {
			return nil, err
		}
		if err := side.h.create(ctx, kindCarrier, side.image, mounts); err != nil {
			return nil, v.at(side.h, err)
		}
		if err := v.guard(ctx); err != nil {
			return nil, errors.Join(err, side.h.remove(ctx, side.h.work(kindCarrier), true))
		}
	}
	return names, nil
}

// places holds the volumes in a carrier. Files are written there and not into the volume's own folder, since Docker leaves
// alone the owner and the mode of the folder that it writes into.
const places = "/hubrelay"

func place(i int) string { return places + "/" + strconv.Itoa(i) }

// note is what the copy step wants to find again: it is worth something for the same two containers alone.
type note struct {
	Arrival string            `json:"arrival"`
	Digests map[string]string `json:"digests"`
}

func (v *move) copyNote() []byte {
	if v.digests == nil {
		return nil
	}
	data, err := json.Marshal(note{Arrival: v.arrival, Digests: v.digests})
	if err != nil || len(data) > 64<<10 {
		return nil
	}
	return data
}

// copied finds what an earlier call has copied.
func (v *move) copied(arrival string) map[string]string {
	for _, p := range v.Done {
		var n note
		if p.Step == stepCopy && p.Completed && json.Unmarshal(p.Note, &n) == nil && n.Arrival == arrival {
			return n.Digests
		}
	}
	return nil
}

func (v *move) nothingToCopy(f found) bool {
	return !v.CopyVolumes || f.moved() || f.src.away != nil && f.src.away.kind == kindLeft
}

func (v *move) copyVolumes(ctx context.Context, f found) error {
	if v.nothingToCopy(f) {
		return nil
	}
	if !f.arrived() {
		return fmt.Errorf("the container that was made on server %s has vanished", v.dst.server)
	}
	names, err := v.carriers(ctx, f)
	if err != nil {
		return err
	}
	v.arrival = f.src.away.ticket.arrival
	if v.digests = v.copied(v.arrival); v.digests != nil {
		return nil
	}
	v.digests = map[string]string{}
	progress := &meter{step: stepCopy, total: v.size, report: v.report}
	for i, name := range names {
		v.driver.between("copy volume")
		if v.digests[name], err = v.copyVolume(ctx, i, progress); err != nil {
			return fmt.Errorf("volume %s could not be copied: %w", name, err)
		}
	}
	return nil
}

// copyVolume streams a volume from carrier to carrier and returns the digest of what has passed.
func (v *move) copyVolume(ctx context.Context, i int, progress *meter) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from, err := v.src.api.CopyFromContainer(ctx, v.src.work(kindCarrier), client.CopyFromContainerOptions{SourcePath: place(i)})
	if err != nil {
		return "", v.at(v.src, err)
	}
	defer func() { _ = from.Content.Close() }() // what matters has been read
	progress.reader = from.Content
	sum := newSummer(progress)
	_, err = v.dst.api.CopyToContainer(ctx, v.dst.work(kindCarrier), client.CopyToContainerOptions{
		DestinationPath: places, Content: sum, AllowOverwriteDirWithFile: true,
	})
	digest, read := sum.end(err)
	switch failed := progress.failure(); {
	case failed != nil: // it is why the destination has complained
		return "", v.at(v.src, failed)
	case read != nil && !errors.Is(read, err):
		return "", v.at(v.src, read)
	}
	return digest, v.at(v.dst, err)
}

// verify reads back what the destination has.
func (v *move) verify(ctx context.Context, f found) error {
	if v.nothingToCopy(f) || len(v.digests) == 0 {
		return nil
	}
	if f.dst.carrier == nil {
		return fmt.Errorf("the container %s on server %s has vanished", v.dst.work(kindCarrier), v.dst.server)
	}
	names, err := v.carriers(ctx, f)
	if err != nil {
		return err
	}
	progress := &meter{step: stepVerify, total: v.size, report: v.report}
	for i, name := range names {
		from, err := v.dst.api.CopyFromContainer(ctx, v.dst.work(kindCarrier), client.CopyFromContainerOptions{SourcePath: place(i)})
		if err != nil {
			return v.at(v.dst, err)
		}
		progress.reader = from.Content
		sum := newSummer(progress)
		_, err = io.Copy(io.Discard, sum)
		digest, read := sum.end(err)
		_ = from.Content.Close() // what matters has been read
		if err := errors.Join(err, read); err != nil {
			return v.at(v.dst, err)
		}
		if digest != v.digests[name] {
			return fmt.Errorf("volume %s is not on server %s as it was read on server %s; look at the disk there", name, v.dst.server, v.src.server)
		}
	}
	return nil
}

// volumeSizes asks how much there is to copy, if Docker can tell that soon.
func (v *move) volumeSizes(ctx context.Context, names []string) (total int64) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	usage, err := v.src.api.DiskUsage(ctx, client.DiskUsageOptions{Volumes: true, Verbose: true})
	if err != nil {
		return 0
	}
	for _, item := range usage.Volumes.Items {
		for _, name := range names {
			if item.Name == name && item.UsageData != nil {
				total += max(item.UsageData.Size, 0)
			}
		}
	}
	return total
}
