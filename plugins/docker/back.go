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

// back brings the instance back to the source and returns cause, or completes the migration and returns nil where the
// destination is what counts by now.
func (v *move) back(ctx context.Context, cause error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := v.guard(ctx); errors.Is(cause, relay.ErrSuperseded) || errors.Is(err, relay.ErrSuperseded) {
		return relay.ErrSuperseded
	}
	if relay.IsUnsettled(cause) {
		return cause
	}
	v.driver.between("back")
	completed, err := v.restore(ctx)
	switch {
	case errors.Is(err, relay.ErrSuperseded):
		return relay.ErrSuperseded
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return relay.Unsettled(fmt.Errorf("%w; and the instance is not back on server %s: %w", cause, v.src.server, err))
	case completed:
		return nil
	}
	return cause
}

func (v *move) restore(ctx context.Context) (completed bool, err error) {
	f, err := v.look(ctx)
	if err != nil {
		return false, err
	}
	switch away := f.src.away; {
	case f.src.home != nil && away != nil:
		return false, fmt.Errorf("it is there twice, as %s and as %s; remove the one that is wrong", v.Instance, away.name)
	case f.src.home != nil: // it was never taken away, or is back
		return false, v.discard(ctx, f)
	case f.lost == nil && f.moved():
		return true, v.finish(ctx, f)
	case away == nil && len(v.Done) == 0 && !v.Undo: // there never was one
		return false, v.discard(ctx, f)
	case away == nil:
		return false, errors.Join(fmt.Errorf("there is no container %s on either server", v.Instance), f.lost)
	case away.ticket.job != jobTag(v.JobID):
		return false, fmt.Errorf("another job has begun to move it and is not over, see container %s on server %s", away.name, v.src.server)
	case away.kind == kindLeft && f.lost != nil:
		return false, fmt.Errorf("it may run on server %s, which does not answer: %w", v.dst.server, f.lost)
	case away.kind == kindLeft && f.arrived() && v.serves(ctx, f.dst.arriving.name):
		// What was written there since is not at the source. If its name cannot be had there is no other way than back.
		if err := v.switchOver(ctx, f); err == nil {
			return v.restore(ctx)
		}
	}
	if err := v.discard(ctx, f); err != nil {
		return false, err
	}
	v.driver.between("discarded")
	return false, v.putBack(ctx, f.src.away)
}

// discard leaves nothing at the destination, where that can be asked.
func (v *move) discard(ctx context.Context, f found) error {
	if f.src.carrier != nil {
		if err := v.src.remove(ctx, f.src.carrier.name, true); err != nil {
			return v.at(v.src, err)
		}
	}
	if f.lost != nil {
		v.log.Warn("what was begun at the destination stays there until the next migration to it, since it does not answer",
			"server", v.dst.server, "error", f.lost)
		return nil
	}
	err := v.sweep(ctx, f.dst)
	if errors.Is(err, errInUse) { // no reason for the instance not to run at the source
		v.log.Warn("a volume that was made for the instance stays at the destination", "server", v.dst.server, "error", err)
		return nil
	}
	return v.at(v.dst, err)
}

// sweep removes what an unfinished migration has made at the destination. errInUse says that no more than volumes are left.
func (v *move) sweep(ctx context.Context, b boxes) (used error) {
	var orphans []string
	if b.arriving != nil {
		c, err := v.dst.inspect(ctx, b.arriving.name)
		if ignoreNotFound(err) != nil {
			return err
		}
		orphans = volumeNames(c)
	}
	for _, box := range []*box{b.carrier, b.arriving} {
		if box == nil {
			continue
		}
		if err := v.dst.remove(ctx, box.name, true); err != nil {
			return err
		}
	}
	for _, name := range orphans { // of another job, perhaps, that could not remove them
		r, err := v.dst.api.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
		if err != nil || jobTag(r.Volume.Labels[labelJob]) != b.arriving.ticket.job {
			continue // it was there before
		}
		if err := v.guard(ctx); err != nil {
			return err
		}
		switch err := v.dropArrivingVolume(ctx, name); {
		case errors.Is(err, errInUse):
			used = err
		case err != nil:
			return err
		}
	}
	return cmp.Or(v.dropArrivingVolumes(ctx, labelJob+"="+v.JobID), used)
}

// dropArrivingVolumes removes the volumes with a label that this job has made at the destination.
func (v *move) dropArrivingVolumes(ctx context.Context, label string) (used error) {
	filters := client.Filters{}.Add("label", labelJob+"="+v.JobID, label)
	list, err := v.dst.api.VolumeList(ctx, client.VolumeListOptions{Filters: filters})
	if err != nil {
		return err
	}
	for _, volume := range list.Items {
		switch err := v.dropArrivingVolume(ctx, volume.Name); {
		case errors.Is(err, errInUse):
			used = err
		case err != nil:
			return err
		}
	}
	return used
}

// errInUse says that a volume cannot be removed because somebody uses it.
var errInUse = errors.New("volume is in use")

func (v *move) dropArrivingVolume(ctx context.Context, name string) error {
	_, err := v.dst.api.VolumeRemove(ctx, name, client.VolumeRemoveOptions{})
	if errdefs.IsConflict(err) {
		return fmt.Errorf("%w: %w", errInUse, err)
	}
	return ignoreNotFound(err)
}

// putBack lets the instance run at the source again. Its name comes last: who finds it in its place finds it restored.
func (v *move) putBack(ctx context.Context, away *box) error {
	policy := away.ticket.policy
	if _, err := v.src.api.ContainerUpdate(ctx, away.name, client.ContainerUpdateOptions{RestartPolicy: &policy}); err != nil {
		return err
	}
	v.driver.between("leashed")
	if away.ticket.up {
		if _, err := v.src.api.ContainerStart(ctx, away.name, client.ContainerStartOptions{}); err != nil {
			return fmt.Errorf("start %s: %w", away.name, err)
		}
	}
	v.driver.between("restarted")
	return v.src.rename(ctx, away.name, v.Instance)
}

// finish completes a migration that cannot be undone any more.
func (v *move) finish(ctx context.Context, f found) error {
	if err := v.clean(ctx, f); err != nil {
		return err
	}
	for _, step := range []string{stepCheck, stepImage, stepPrepare, stepStop, stepCopy, stepVerify, stepStart, stepSwitch, stepClean} {
		v.report(relay.Progress{Step: step, Completed: true})
	}
	return nil
}
