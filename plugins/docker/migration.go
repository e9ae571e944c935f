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
	image               string            // of the container at the destination
	size                int64             // of the data to copy, if known
	digests             map[string]string // of the contents of volumes
	arrivalID           string            // the container at the destination that has them
}

// hostState is the state of a migration on the hosts.
type hostState struct {
	src, dst       containerSet
	destinationErr error // why the destination does not answer
}

// isMoved reports whether the instance is in place at the destination.
func (f hostState) isMoved() bool {
	switch {
	case f.dst.inPlace == nil || f.src.inPlace != nil:
		return false
	case f.src.leaving == nil:
		return true
	}
	return strings.HasPrefix(f.dst.inPlace.id, f.src.leaving.ticket.arrivalID)
}

// hasArrived reports whether the new container, for which the source was stopped, is still waiting at the destination.
func (f hostState) hasArrived() bool {
	return f.src.leaving != nil && f.dst.arriving != nil &&
		strings.HasPrefix(f.dst.arriving.id, f.src.leaving.ticket.arrivalID)
}

// inspect asks both hosts. A destination that does not answer is no error.
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
	v.driver.between(stepClaim)
	if err := v.source.claim(ctx); err != nil {
		return v.sourceUnreachable(ctx, err)
	}
	if err := v.destination.claim(ctx); err != nil {
		return v.rollBack(ctx, fmt.Errorf("server %s cannot be used: %w", v.destination.server, err))
	}
	v.reportStep(stepClaim)
	if v.Undo {
		return v.rollBack(ctx,
			fmt.Errorf("the migration was called off; the instance is on server %s as before", v.source.server))
	}
	if err := v.runSteps(ctx); err != nil {
		return v.rollBack(ctx, v.describeError(err))
	}
	return nil
}

// sourceUnreachable decides about a migration whose source does not answer.
func (v *migration) sourceUnreachable(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, relay.ErrSuperseded):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	}
	err = fmt.Errorf("server %s, where the instance is, cannot be used: %w", v.source.server, err)
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
		v.driver.between(step.id)
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

// checkLeases is called just before a request that names no container of this lease.
func (v *migration) checkLeases(ctx context.Context) error {
	for _, h := range []*dockerHost{v.source, v.destination} {
		if err := h.checkLease(ctx); err != nil {
			return v.withServer(h, err)
		}
	}
	return nil
}

// stop takes the instance out of its place, then stops it.
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
		return fmt.Errorf("the container %s on server %s does not exist any longer", v.Instance, v.source.server)
	case f.src.leaving.kind == kindLeft:
		return nil
	}
	v.driver.between("taken away")
	name := f.src.leaving.name
	// Neither Docker nor a restart of it may start the container again.
	no := container.RestartPolicy{Name: container.RestartPolicyDisabled}
	if _, err := v.source.client.ContainerUpdate(ctx, name,
		client.ContainerUpdateOptions{RestartPolicy: &no}); err != nil {
		return v.withServer(v.source, err)
	}
	v.driver.between("unleashed")
	if _, err := v.source.client.ContainerStop(ctx, name, client.ContainerStopOptions{}); err != nil {
		return v.withServer(v.source, err)
	}
	v.driver.between("stopped")
	return nil
}

// renameSource renames the source. An outdated process cannot be prevented from doing so, so it checks again and
// reverts the name. Nothing else has happened to the instance then.
func (v *migration) renameSource(ctx context.Context, f hostState) error {
	if f.dst.arriving == nil {
		return fmt.Errorf("the container that was made on server %s has vanished", v.destination.server)
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
	v.driver.between("take away")
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

// start starts the instance at the destination. It first records that in the source's name, in case the destination
// does not answer afterwards.
func (v *migration) start(ctx context.Context, f hostState) error {
	if f.isMoved() {
		return nil
	}
	if !f.hasArrived() {
		return fmt.Errorf("the container that was made on server %s has vanished", v.destination.server)
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
	if !f.src.leaving.ticket.wasRunning {
		return nil
	}
	if f.src.leaving.kind == kindLeaving {
		if err := v.source.renameContainer(ctx, f.src.leaving.name,
			v.source.workName(kindLeft)+f.src.leaving.suffix); err != nil {
			return v.withServer(v.source, err)
		}
	}
	v.driver.between("left")
	if _, err := v.destination.client.ContainerStart(ctx, f.dst.arriving.name,
		client.ContainerStartOptions{}); err != nil {
		return fmt.Errorf("the instance does not start on server %s: %w", v.destination.server, err)
	}
	v.driver.between("started")
	return v.waitHealthy(ctx, f.dst.arriving.name)
}

// switchOver gives the container at the destination its name, which is the point of no return.
func (v *migration) switchOver(ctx context.Context, f hostState) error {
	if f.isMoved() {
		return nil
	}
	if !f.hasArrived() {
		return fmt.Errorf("the container that was made on server %s has vanished", v.destination.server)
	}
	err := v.destination.renameContainer(ctx, f.dst.arriving.name, v.Instance)
	if errdefs.IsConflict(err) {
		return fmt.Errorf("server %s has another container %s now; remove or rename it", v.destination.server,
			v.Instance)
	}
	return v.withServer(v.destination, err)
}

// cleanSource removes the instance from the source.
func (v *migration) cleanSource(ctx context.Context, f hostState) error {
	if !f.isMoved() {
		return fmt.Errorf("container %s on server %s is not the one that was moved", v.Instance, v.destination.server)
	}
	kept := v.Stateful && !v.CopyVolumes || v.config.KeepSourceVolumes
	for _, b := range []*containerRef{f.src.carrier, f.src.leaving} {
		if b == nil {
			continue
		}
		if err := v.source.remove(ctx, b.name, b == f.src.carrier || !kept); err != nil {
			return v.withServer(v.source, err)
		}
		v.driver.between("removed")
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

// dropSourceVolumes removes the volumes whose contents were moved. One that cannot be removed is no failure.
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
			v.log.Warn("a volume was moved and cannot be removed from the source", "server", v.source.server, "volume",
				name, "error", err)
		}
	}
	return nil
}

// describeError makes a sentence for people of an error that says too little.
func (v *migration) describeError(err error) error {
	text := err.Error()
	if strings.HasPrefix(text, "server "+v.source.server+": ") {
		return err
	}
	if strings.Contains(text, "no space left on device") || strings.Contains(text, "disk quota exceeded") {
		return fmt.Errorf("server %s has no room left for the instance, make some or choose another server: %w",
			v.destination.server, err)
	}
	return err
}
