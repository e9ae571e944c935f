package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/hubrelay/hubrelay/relay"
)

// rollBack moves the instance back to the source and returns cause. If the destination already counts, it completes the
// migration and returns nil.
func (v *migration) rollBack(ctx context.Context, cause error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := v.checkLeases(ctx); errors.Is(cause, relay.ErrSuperseded) || errors.Is(err, relay.ErrSuperseded) {
		return relay.ErrSuperseded
	}
	if relay.IsIndeterminate(cause) {
		return cause
	}
	v.driver.between("back")
	completed, err := v.restoreSource(ctx)
	switch {
	case errors.Is(err, relay.ErrSuperseded):
		return relay.ErrSuperseded
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return relay.Indeterminate(fmt.Errorf("%w; and the instance is not back on server %s: %w", cause,
			v.source.server, err))
	case completed:
		return nil
	}
	return cause
}

func (v *migration) restoreSource(ctx context.Context) (completed bool, err error) {
	f, err := v.inspect(ctx)
	if err != nil {
		return false, err
	}
	switch away := f.src.leaving; {
	case f.src.inPlace != nil && away != nil:
		return false, fmt.Errorf("it is there twice, as %s and as %s; remove the one that is wrong", v.Instance,
			away.name)
	case f.src.inPlace != nil: // it was never taken away, or is back
		return false, v.discardDestination(ctx, f)
	case f.destinationErr == nil && f.isMoved():
		return true, v.complete(ctx, f)
	case away == nil && len(v.Done) == 0 && !v.Undo: // there never was one
		return false, v.discardDestination(ctx, f)
	case away == nil:
		return false, errors.Join(fmt.Errorf("there is no container %s on either server", v.Instance), f.destinationErr)
	case away.ticket.job != jobTag(v.JobID):
		return false, fmt.Errorf("another job has begun to move it and is not over, see container %s on server %s",
			away.name, v.source.server)
	case away.kind == kindLeft && f.destinationErr != nil:
		return false, fmt.Errorf("it may run on server %s, which does not answer: %w", v.destination.server,
			f.destinationErr)
	case away.kind == kindLeft && f.hasArrived() && v.isHealthy(ctx, f.dst.arriving.name):
		// New data is not at the source. If the name is not available, going back is the only way.
		if err := v.switchOver(ctx, f); err == nil {
			return v.restoreSource(ctx)
		}
	}
	if err := v.discardDestination(ctx, f); err != nil {
		return false, err
	}
	v.driver.between("discarded")
	return false, v.restoreContainer(ctx, f.src.leaving)
}

// discardDestination removes everything from the destination, if it answers.
func (v *migration) discardDestination(ctx context.Context, f hostState) error {
	if f.src.carrier != nil {
		if err := v.source.remove(ctx, f.src.carrier.name, true); err != nil {
			return v.withServer(v.source, err)
		}
	}
	if f.destinationErr != nil {
		v.log.Warn("what was begun at the destination stays there until the next migration to it, since it does not "+
			"answer",
			"server", v.destination.server, "error", f.destinationErr)
		return nil
	}
	err := v.removeUnfinished(ctx, f.dst)
	if errors.Is(err, errVolumeInUse) { // no reason for the instance not to run at the source
		v.log.Warn("a volume that was made for the instance stays at the destination", "server", v.destination.server,
			"error", err)
		return nil
	}
	return v.withServer(v.destination, err)
}

// removeUnfinished removes the objects of an unfinished migration at the destination. errVolumeInUse means that only
// volumes are left.
func (v *migration) removeUnfinished(ctx context.Context, b containerSet) (used error) {
	var orphans []string
	if b.arriving != nil {
		c, err := v.destination.inspectContainer(ctx, b.arriving.name)
		if ignoreNotFound(err) != nil {
			return err
		}
		orphans = volumeNames(c)
	}
	for _, box := range []*containerRef{b.carrier, b.arriving} {
		if box == nil {
			continue
		}
		if err := v.destination.remove(ctx, box.name, true); err != nil {
			return err
		}
	}
	for _, name := range orphans { // of another job, perhaps, that could not remove them
		r, err := v.destination.client.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
		if err != nil || jobTag(r.Volume.Labels[labelJob]) != b.arriving.ticket.job {
			continue // it was there before
		}
		if err := v.checkLeases(ctx); err != nil {
			return err
		}
		switch err := v.dropArrivingVolume(ctx, name); {
		case errors.Is(err, errVolumeInUse):
			used = err
		case err != nil:
			return err
		}
	}
	return cmp.Or(v.dropArrivingVolumes(ctx, labelJob+"="+v.JobID), used)
}

// dropArrivingVolumes removes the volumes with a label that this job has made at the destination.
func (v *migration) dropArrivingVolumes(ctx context.Context, label string) (used error) {
	filters := client.Filters{}.Add("label", labelJob+"="+v.JobID, label)
	list, err := v.destination.client.VolumeList(ctx, client.VolumeListOptions{Filters: filters})
	if err != nil {
		return err
	}
	for _, volume := range list.Items {
		switch err := v.dropArrivingVolume(ctx, volume.Name); {
		case errors.Is(err, errVolumeInUse):
			used = err
		case err != nil:
			return err
		}
	}
	return used
}

// errVolumeInUse means that a volume cannot be removed because a container uses it.
var errVolumeInUse = errors.New("volume is in use")

func (v *migration) dropArrivingVolume(ctx context.Context, name string) error {
	_, err := v.destination.client.VolumeRemove(ctx, name, client.VolumeRemoveOptions{})
	if errdefs.IsConflict(err) {
		return fmt.Errorf("%w: %w", errVolumeInUse, err)
	}
	return ignoreNotFound(err)
}

// restoreContainer starts the instance at the source again. It sets the name last, so a container in place is fully
// restored.
func (v *migration) restoreContainer(ctx context.Context, away *containerRef) error {
	policy := away.ticket.policy
	if _, err := v.source.client.ContainerUpdate(ctx, away.name, client.ContainerUpdateOptions{
		RestartPolicy: &policy,
	}); err != nil {
		return err
	}
	v.driver.between("leashed")
	if away.ticket.wasRunning {
		if _, err := v.source.client.ContainerStart(ctx, away.name, client.ContainerStartOptions{}); err != nil {
			return fmt.Errorf("start %s: %w", away.name, err)
		}
	}
	v.driver.between("restarted")
	return v.source.renameContainer(ctx, away.name, v.Instance)
}

// complete finishes a migration that cannot be undone.
func (v *migration) complete(ctx context.Context, f hostState) error {
	if err := v.cleanSource(ctx, f); err != nil {
		return err
	}
	for _, step := range []string{
		stepCheck, stepImage, stepPrepare, stepStop, stepCopy, stepVerify, stepStart,
		stepSwitch, stepClean,
	} {
		v.report(relay.Progress{Step: step, Completed: true})
	}
	return nil
}
