package docker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/hubrelay/hubrelay/relay"
)

// migration is one call of Migrate.
type migration struct {
	relay.Migration
	config              Config
	driver              *Driver
	log                 *slog.Logger
	report              func(relay.Progress)
	source, destination *dockerHost
	image               string            // image of the new container
	size                int64             // size of the data to copy, or 0 if unknown
	digests             map[string]string // digests of the copied volumes by name
	arrivalID           string            // ID of the new container that has these volumes
}

// hostState is the state of a migration on the hosts.
type hostState struct {
	src, dst       containerSet
	destinationErr error // the reason why the destination does not respond
}

// isMoved reports whether the container on the destination has the name of the instance and is the new one.
func (f hostState) isMoved() bool {
	switch {
	case f.dst.inPlace == nil || f.src.inPlace != nil:
		return false
	case f.src.leaving == nil:
		return true
	}
	return strings.HasPrefix(f.dst.inPlace.id, f.src.leaving.restore.arrivalID)
}

// hasArrived reports whether the destination still has the new container for which the source was stopped.
func (f hostState) hasArrived() bool {
	return f.src.leaving != nil && f.dst.arriving != nil &&
		strings.HasPrefix(f.dst.arriving.id, f.src.leaving.restore.arrivalID)
}

// inspect reads the state of the migration from both hosts. It is not an error if the destination does not respond.
func (v *migration) inspect(ctx context.Context) (f hostState, err error) {
	if f.src, err = v.source.listContainers(ctx); err != nil {
		return f, v.withServer(v.source, err)
	}
	f.dst, f.destinationErr = v.destination.listContainers(ctx)
	if errors.Is(f.destinationErr, relay.ErrSuperseded) || isStopped(ctx, f.destinationErr) {
		return f, f.destinationErr
	}
	return f, nil
}

// withServer adds the name of the server to an error.
func (v *migration) withServer(h *dockerHost, err error) error {
	if err == nil || errors.Is(err, relay.ErrSuperseded) {
		return err
	}
	return fmt.Errorf("server %s: %w", h.server, err)
}

func (v *migration) runMigration(ctx context.Context) error {
	v.driver.stepHook(stepClaim)
	if err := v.source.claim(ctx); err != nil {
		return v.sourceUnreachable(ctx, err)
	}
	if err := v.destination.claim(ctx); err != nil {
		return v.rollBack(ctx, fmt.Errorf("server %s cannot be used: %w", v.destination.server, err))
	}
	v.reportStep(stepClaim)
	if v.Undo {
		return v.rollBack(ctx,
			fmt.Errorf("the migration was undone; the instance is on server %s as before", v.source.server))
	}
	if err := v.runSteps(ctx); err != nil {
		return v.rollBack(ctx, v.describeError(err))
	}
	return nil
}

// sourceUnreachable returns the error of a migration whose source does not respond.
func (v *migration) sourceUnreachable(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, relay.ErrSuperseded):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	}
	err = fmt.Errorf("source server %s cannot be used: %w", v.source.server, err)
	if v.Undo || len(v.Done) > 0 {
		return relay.Indeterminate(err)
	}
	return err
}

func (v *migration) runSteps(ctx context.Context) error {
	for _, step := range []struct {
		id string
		do func(context.Context, hostState) error
	}{
		{stepCheck, v.checkPreconditions},
		{stepImage, v.copyImage},
		{stepPrepare, v.prepareDestination},
		{stepStop, v.stop},
		{stepCopy, v.copyVolumes},
		{stepVerify, v.verifyCopy},
		{stepStart, v.start},
		{stepSwitch, v.switchOver},
		{stepClean, v.cleanSource},
	} {
		v.driver.stepHook(step.id)
		if err := ctx.Err(); err != nil {
			return err
		}
		f, err := v.inspect(ctx)
		if err == nil && f.destinationErr != nil {
			err = v.withServer(v.destination, f.destinationErr)
		}
		if err == nil {
			err = step.do(ctx, f)
		}
		if err != nil {
			return err
		}
		v.reportStep(step.id)
	}
	return nil
}

func (v *migration) reportStep(step string) {
	p := relay.Progress{Step: step, Completed: true}
	if step == stepCopy {
		p.Note = v.copyNote()
	}
	v.report(p)
}

// checkLeases returns ErrSuperseded if there is a higher lease on either host. It is called just before a request that
// does not address a container by a name with the lease.
func (v *migration) checkLeases(ctx context.Context) error {
	for _, h := range []*dockerHost{v.source, v.destination} {
		if err := h.checkLease(ctx); err != nil {
			return v.withServer(h, err)
		}
	}
	return nil
}

// stop renames the container of the instance and stops it.
func (v *migration) stop(ctx context.Context, f hostState) error {
	if f.isMoved() {
		return nil
	}
	if f.src.inPlace != nil {
		if err := v.renameSource(ctx, f); err != nil {
			return err
		}
		var err error
		if f, err = v.inspect(ctx); err != nil {
			return err
		}
	}
	switch {
	case f.src.leaving == nil:
		return fmt.Errorf("container %s on server %s no longer exists", v.Instance, v.source.server)
	case f.src.leaving.kind == kindLeft:
		return nil
	}
	v.driver.stepHook("source renamed")
	name := f.src.leaving.name
	// Docker must not start the container again, even after a restart of Docker.
	no := container.RestartPolicy{Name: container.RestartPolicyDisabled}
	if _, err := v.source.client.ContainerUpdate(ctx, name,
		client.ContainerUpdateOptions{RestartPolicy: &no}); err != nil {
		return v.withServer(v.source, err)
	}
	v.driver.stepHook("restart policy cleared")
	if _, err := v.source.client.ContainerStop(ctx, name, client.ContainerStopOptions{}); err != nil {
		return v.withServer(v.source, err)
	}
	v.driver.stepHook("stopped")
	return nil
}

// renameSource renames the container on the source. An outdated process may do that too, because the current name
// contains no lease. Therefore renameSource checks the leases again after the rename, and reverts the rename if the
// process is outdated. At that time nothing else has changed.
func (v *migration) renameSource(ctx context.Context, f hostState) error {
	if f.dst.arriving == nil {
		return fmt.Errorf("the container created on server %s has disappeared", v.destination.server)
	}
	c, err := v.source.inspectContainer(ctx, f.src.inPlace.name)
	if err != nil {
		return v.withServer(v.source, err)
	}
	t := restoreInfo{
		job: jobTag(v.JobID), arrivalID: shortID(f.dst.arriving.id), wasRunning: c.State.Running || c.State.Restarting,
		policy: c.HostConfig.RestartPolicy,
	}
	away := v.source.workName(kindLeaving) + "." + t.String()
	if err := v.checkLeases(ctx); err != nil {
		return err
	}
	v.driver.stepHook("rename source")
	if err := v.source.renameContainer(ctx, v.Instance, away); err != nil {
		return v.withServer(v.source, err)
	}
	if err := v.checkLeases(ctx); errors.Is(err, relay.ErrSuperseded) {
		return errors.Join(err, ignoreNotFound(v.source.renameContainer(ctx, away, v.Instance)))
	}
	return nil
}

func ignoreNotFound(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// start starts the instance on the destination. It first records the start in the name of the source, in case the
// destination does not respond afterwards.
func (v *migration) start(ctx context.Context, f hostState) error {
	if f.isMoved() {
		return nil
	}
	if !f.hasArrived() {
		return fmt.Errorf("the container created on server %s has disappeared", v.destination.server)
	}
	for _, side := range []struct {
		h *dockerHost
		b *containerRef
	}{{v.source, f.src.carrier}, {v.destination, f.dst.carrier}} {
		if side.b != nil {
			if err := side.h.remove(ctx, side.b.name, true); err != nil {
				return v.withServer(side.h, err)
			}
		}
	}
	if !f.src.leaving.restore.wasRunning {
		return nil
	}
	if f.src.leaving.kind == kindLeaving {
		if err := v.source.renameContainer(ctx, f.src.leaving.name,
			v.source.workName(kindLeft)+f.src.leaving.suffix); err != nil {
			return v.withServer(v.source, err)
		}
	}
	v.driver.stepHook("left")
	if _, err := v.destination.client.ContainerStart(ctx, f.dst.arriving.name,
		client.ContainerStartOptions{}); err != nil {
		return fmt.Errorf("the instance did not start on server %s: %w", v.destination.server, err)
	}
	v.driver.stepHook("started")
	return v.waitHealthy(ctx, f.dst.arriving.name)
}

// switchOver renames the new container to the name of the instance. After that, the migration cannot be undone.
func (v *migration) switchOver(ctx context.Context, f hostState) error {
	if f.isMoved() {
		return nil
	}
	if !f.hasArrived() {
		return fmt.Errorf("the container created on server %s has disappeared", v.destination.server)
	}
	err := v.destination.renameContainer(ctx, f.dst.arriving.name, v.Instance)
	if errdefs.IsConflict(err) {
		return fmt.Errorf("server %s now has another container %s; remove or rename it", v.destination.server,
			v.Instance)
	}
	return v.withServer(v.destination, err)
}

// cleanSource removes the instance from the source.
func (v *migration) cleanSource(ctx context.Context, f hostState) error {
	if !f.isMoved() {
		return fmt.Errorf("container %s on server %s is not the migrated one", v.Instance, v.destination.server)
	}
	kept := v.Stateful && !v.CopyVolumes || v.config.KeepSourceVolumes
	for _, b := range []*containerRef{f.src.carrier, f.src.leaving} {
		if b == nil {
			continue
		}
		if err := v.source.remove(ctx, b.name, b == f.src.carrier || !kept); err != nil {
			return v.withServer(v.source, err)
		}
		v.driver.stepHook("removed")
	}
	if f.dst.carrier != nil {
		if err := v.destination.remove(ctx, f.dst.carrier.name, true); err != nil {
			return v.withServer(v.destination, err)
		}
	}
	if !v.CopyVolumes || v.config.KeepSourceVolumes {
		return nil
	}
	return v.dropSourceVolumes(ctx, f.dst.inPlace)
}

// dropSourceVolumes removes the copied volumes from the source. It only logs a volume that cannot be removed.
func (v *migration) dropSourceVolumes(ctx context.Context, home *containerRef) error {
	c, err := v.destination.inspectContainer(ctx, home.name)
	if err != nil {
		return v.withServer(v.destination, err)
	}
	for _, name := range volumeNames(c) {
		r, err := v.destination.client.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
		if err != nil {
			return v.withServer(v.destination, err)
		}
		if r.Volume.Labels[labelJob] != v.JobID {
			continue
		}
		if err := v.checkLeases(ctx); err != nil {
			return err
		}
		if _, err := v.source.client.VolumeRemove(ctx, name, client.VolumeRemoveOptions{}); ignoreNotFound(err) != nil {
			v.log.Warn("could not remove moved volume from the source", "server", v.source.server, "volume", name,
				"error", err)
		}
	}
	return nil
}

// describeError adds the server and advice for the operator to an error about disk space.
func (v *migration) describeError(err error) error {
	text := err.Error()
	if strings.HasPrefix(text, "server "+v.source.server+": ") {
		return err
	}
	if strings.Contains(text, "no space left on device") || strings.Contains(text, "disk quota exceeded") {
		return fmt.Errorf("server %s has not enough disk space for the instance; free some space or choose another "+
			"server: %w", v.destination.server, err)
	}
	return err
}
