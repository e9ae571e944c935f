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

// rollBack moves the instance back to the source and returns cause. If the instance already runs on the destination, it
// completes the migration and returns nil.
func (mg *migration) rollBack(ctx context.Context, cause error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := mg.checkLeases(ctx); errors.Is(cause, relay.ErrSuperseded) || errors.Is(err, relay.ErrSuperseded) {
		return relay.ErrSuperseded
	}
	if relay.IsIndeterminate(cause) {
		return cause
	}
	mg.driver.stepHook("back")
	completed, err := mg.restoreSource(ctx)
	switch {
	case errors.Is(err, relay.ErrSuperseded):
		return relay.ErrSuperseded
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return relay.Indeterminate(fmt.Errorf("%w; restoring the instance on server %s failed: %w", cause,
			mg.source.server, err))
	case completed:
		return nil
	}
	return cause
}

func (mg *migration) restoreSource(ctx context.Context) (completed bool, err error) {
	f, err := mg.inspect(ctx)
	if err != nil {
		return false, err
	}
	switch away := f.src.leaving; {
	case f.src.inPlace != nil && away != nil:
		return false, fmt.Errorf("it exists twice, as %s and as %s; remove the wrong one", mg.Instance, away.name)
	case f.src.inPlace != nil: // it was never renamed, or is already restored
		return false, mg.discardDestination(ctx, f)
	case f.destinationErr == nil && f.isMoved():
		return true, mg.complete(ctx, f)
	case away == nil && len(mg.Done) == 0 && !mg.Undo: // the container never existed
		return false, mg.discardDestination(ctx, f)
	case away == nil:
		return false, errors.Join(fmt.Errorf("there is no container %s on either server", mg.Instance), f.destinationErr)
	case away.restore.job != jobTag(mg.JobID):
		return false, fmt.Errorf("another job has started to move it and has not finished; see container %s on "+
			"server %s", away.name, mg.source.server)
	case away.kind == kindLeft && f.destinationErr != nil:
		return false, fmt.Errorf("it may be running on server %s, which does not respond: %w", mg.destination.server,
			f.destinationErr)
	case away.kind == kindLeft && f.hasArrived() && mg.isHealthy(ctx, f.dst.arriving.name):
		// The new data is not on the source. The instance is moved back only if its name is not available.
		if err := mg.switchOver(ctx, f); err == nil {
			return mg.restoreSource(ctx)
		}
	}
	if err := mg.discardDestination(ctx, f); err != nil {
		return false, err
	}
	mg.driver.stepHook("discarded")
	return false, mg.restoreContainer(ctx, f.src.leaving)
}

// discardDestination removes the objects of the migration from the destination, if the destination responds.
func (mg *migration) discardDestination(ctx context.Context, f hostState) error {
	if f.src.carrier != nil {
		if err := mg.source.remove(ctx, f.src.carrier.name, true); err != nil {
			return mg.withServer(mg.source, err)
		}
	}
	if f.destinationErr != nil {
		// The next migration to the destination removes the objects.
		mg.log.Warn("could not remove unfinished containers and volumes from the destination", "server",
			mg.destination.server, "error", f.destinationErr)
		return nil
	}
	err := mg.removeUnfinished(ctx, f.dst)
	if errors.Is(err, errVolumeInUse) { // the instance can run on the source anyway
		mg.log.Warn("could not remove volume of the instance from the destination", "server", mg.destination.server,
			"error", err)
		return nil
	}
	return mg.withServer(mg.destination, err)
}

// removeUnfinished removes the objects of an unfinished migration from the destination. It returns errVolumeInUse if
// only volumes remain.
func (mg *migration) removeUnfinished(ctx context.Context, b containerSet) (used error) {
	var orphans []string
	if b.arriving != nil {
		c, err := mg.destination.inspectContainer(ctx, b.arriving.name)
		if ignoreNotFound(err) != nil {
			return err
		}
		orphans = volumeNames(c)
	}
	for _, ref := range []*containerRef{b.carrier, b.arriving} {
		if ref == nil {
			continue
		}
		if err := mg.destination.remove(ctx, ref.name, true); err != nil {
			return err
		}
	}
	for _, name := range orphans { // another job may have created them
		r, err := mg.destination.client.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
		if err != nil || jobTag(r.Volume.Labels[labelJob]) != b.arriving.restore.job {
			continue // the job of the container did not create it
		}
		if err := mg.checkLeases(ctx); err != nil {
			return err
		}
		switch err := mg.dropArrivingVolume(ctx, name); {
		case errors.Is(err, errVolumeInUse):
			used = err
		case err != nil:
			return err
		}
	}
	return cmp.Or(mg.dropArrivingVolumes(ctx, labelJob+"="+mg.JobID), used)
}

// dropArrivingVolumes removes the volumes with a label that this job created on the destination.
func (mg *migration) dropArrivingVolumes(ctx context.Context, label string) (used error) {
	filters := client.Filters{}.Add("label", labelJob+"="+mg.JobID, label)
	list, err := mg.destination.client.VolumeList(ctx, client.VolumeListOptions{Filters: filters})
	if err != nil {
		return err
	}
	for _, volume := range list.Items {
		switch err := mg.dropArrivingVolume(ctx, volume.Name); {
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

func (mg *migration) dropArrivingVolume(ctx context.Context, name string) error {
	_, err := mg.destination.client.VolumeRemove(ctx, name, client.VolumeRemoveOptions{})
	if errdefs.IsConflict(err) {
		return fmt.Errorf("%w: %w", errVolumeInUse, err)
	}
	return ignoreNotFound(err)
}

// restoreContainer starts the instance on the source again. It restores the name last, so a container with that name is
// fully restored.
func (mg *migration) restoreContainer(ctx context.Context, away *containerRef) error {
	policy := away.restore.policy
	if _, err := mg.source.client.ContainerUpdate(ctx, away.name, client.ContainerUpdateOptions{
		RestartPolicy: &policy,
	}); err != nil {
		return err
	}
	mg.driver.stepHook("restart policy restored")
	if away.restore.wasRunning {
		if _, err := mg.source.client.ContainerStart(ctx, away.name, client.ContainerStartOptions{}); err != nil {
			return fmt.Errorf("start %s: %w", away.name, err)
		}
	}
	mg.driver.stepHook("restarted")
	return mg.source.renameContainer(ctx, away.name, mg.Instance)
}

// complete finishes a migration that cannot be undone.
func (mg *migration) complete(ctx context.Context, f hostState) error {
	if err := mg.cleanSource(ctx, f); err != nil {
		return err
	}
	for _, step := range []string{
		stepCheck, stepImage, stepPrepare, stepStop, stepCopy, stepVerify, stepStart,
		stepSwitch, stepClean,
	} {
		mg.report(relay.Progress{Step: step, Completed: true})
	}
	return nil
}
