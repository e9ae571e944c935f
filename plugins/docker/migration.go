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
func (h hostState) isMoved() bool {
	switch {
	case h.dst.inPlace == nil || h.src.inPlace != nil:
		return false
	case h.src.leaving == nil:
		return true
	}
	return strings.HasPrefix(h.dst.inPlace.id, h.src.leaving.restore.arrivalID)
}

// hasArrived reports whether the destination still has the new container for which the source was stopped.
func (h hostState) hasArrived() bool {
	return h.src.leaving != nil && h.dst.arriving != nil &&
		strings.HasPrefix(h.dst.arriving.id, h.src.leaving.restore.arrivalID)
}

// inspect reads the state of the migration from both hosts. It is not an error if the destination does not respond.
func (mg *migration) inspect(ctx context.Context) (f hostState, err error) {
	if f.src, err = mg.source.listContainers(ctx); err != nil {
		return f, mg.withServer(mg.source, err)
	}
	f.dst, f.destinationErr = mg.destination.listContainers(ctx)
	if errors.Is(f.destinationErr, relay.ErrSuperseded) || isStopped(ctx, f.destinationErr) {
		return f, f.destinationErr
	}
	return f, nil
}

// withServer adds the name of the server to an error.
func (mg *migration) withServer(h *dockerHost, err error) error {
	if err == nil || errors.Is(err, relay.ErrSuperseded) {
		return err
	}
	return fmt.Errorf("server %s: %w", h.server, err)
}

func (mg *migration) runMigration(ctx context.Context) error {
	mg.driver.stepHook(stepClaim)
	if err := mg.source.claim(ctx); err != nil {
		return mg.sourceUnreachable(ctx, err)
	}
	if err := mg.destination.claim(ctx); err != nil {
		return mg.rollBack(ctx, fmt.Errorf("server %s cannot be used: %w", mg.destination.server, err))
	}
	mg.reportStep(stepClaim)
	if mg.Undo {
		return mg.rollBack(ctx,
			fmt.Errorf("the instance is back on server %s", mg.source.server))
	}
	if err := mg.runSteps(ctx); err != nil {
		return mg.rollBack(ctx, mg.describeError(err))
	}
	return nil
}

// sourceUnreachable returns the error of a migration whose source does not respond.
func (mg *migration) sourceUnreachable(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, relay.ErrSuperseded):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	}
	err = fmt.Errorf("source server %s cannot be used: %w", mg.source.server, err)
	if mg.Undo || len(mg.Done) > 0 {
		return relay.Indeterminate(err)
	}
	return err
}

func (mg *migration) runSteps(ctx context.Context) error {
	for _, step := range []struct {
		id string
		do func(context.Context, hostState) error
	}{
		{stepCheck, mg.checkPreconditions},
		{stepImage, mg.copyImage},
		{stepPrepare, mg.prepareDestination},
		{stepStop, mg.stop},
		{stepCopy, mg.copyVolumes},
		{stepVerify, mg.verifyCopy},
		{stepStart, mg.start},
		{stepSwitch, mg.switchOver},
		{stepClean, mg.cleanSource},
	} {
		mg.driver.stepHook(step.id)
		if err := ctx.Err(); err != nil {
			return err
		}
		f, err := mg.inspect(ctx)
		if err == nil && f.destinationErr != nil {
			err = mg.withServer(mg.destination, f.destinationErr)
		}
		if err == nil {
			err = step.do(ctx, f)
		}
		if err != nil {
			return err
		}
		mg.reportStep(step.id)
	}
	return nil
}

func (mg *migration) reportStep(step string) {
	p := relay.Progress{Step: step, Completed: true}
	if step == stepCopy {
		p.Note = mg.copyNote()
	}
	mg.report(p)
}

// checkLeases returns ErrSuperseded if there is a higher lease on either host. It is called just before a request that
// does not address a container by a name with the lease.
func (mg *migration) checkLeases(ctx context.Context) error {
	for _, h := range []*dockerHost{mg.source, mg.destination} {
		if err := h.checkLease(ctx); err != nil {
			return mg.withServer(h, err)
		}
	}
	return nil
}

// stop renames the container of the instance and stops it.
func (mg *migration) stop(ctx context.Context, f hostState) error {
	if f.isMoved() {
		return nil
	}
	if f.src.inPlace != nil {
		if err := mg.renameSource(ctx, f); err != nil {
			return err
		}
		var err error
		if f, err = mg.inspect(ctx); err != nil {
			return err
		}
	}
	switch {
	case f.src.leaving == nil:
		return fmt.Errorf("container %s on server %s no longer exists", mg.Instance, mg.source.server)
	case f.src.leaving.kind == kindLeft:
		return nil
	}
	mg.driver.stepHook("source renamed")
	name := f.src.leaving.name
	// Docker must not start the container again, even after a restart of Docker.
	no := container.RestartPolicy{Name: container.RestartPolicyDisabled}
	if _, err := mg.source.client.ContainerUpdate(ctx, name,
		client.ContainerUpdateOptions{RestartPolicy: &no}); err != nil {
		return mg.withServer(mg.source, err)
	}
	mg.driver.stepHook("restart policy cleared")
	if _, err := mg.source.client.ContainerStop(ctx, name, client.ContainerStopOptions{}); err != nil {
		return mg.withServer(mg.source, err)
	}
	mg.driver.stepHook("stopped")
	return nil
}

// renameSource renames the container on the source. An outdated process may do that too, because the current name
// contains no lease. Therefore renameSource checks the leases again after the rename, and reverts the rename if the
// process is outdated. At that time nothing else has changed.
func (mg *migration) renameSource(ctx context.Context, f hostState) error {
	if f.dst.arriving == nil {
		return fmt.Errorf("the container created on server %s has disappeared", mg.destination.server)
	}
	c, err := mg.source.inspectContainer(ctx, f.src.inPlace.name)
	if err != nil {
		return mg.withServer(mg.source, err)
	}
	t := restoreInfo{
		job: jobTag(mg.JobID), arrivalID: shortID(f.dst.arriving.id), wasRunning: c.State.Running || c.State.Restarting,
		policy: c.HostConfig.RestartPolicy,
	}
	away := mg.source.workName(kindLeaving) + "." + t.String()
	if err := mg.checkLeases(ctx); err != nil {
		return err
	}
	mg.driver.stepHook("rename source")
	if err := mg.source.renameContainer(ctx, mg.Instance, away); err != nil {
		return mg.withServer(mg.source, err)
	}
	if err := mg.checkLeases(ctx); errors.Is(err, relay.ErrSuperseded) {
		return errors.Join(err, ignoreNotFound(mg.source.renameContainer(ctx, away, mg.Instance)))
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
func (mg *migration) start(ctx context.Context, f hostState) error {
	if f.isMoved() {
		return nil
	}
	if !f.hasArrived() {
		return fmt.Errorf("the container created on server %s has disappeared", mg.destination.server)
	}
	for _, side := range []struct {
		h *dockerHost
		b *containerRef
	}{{mg.source, f.src.carrier}, {mg.destination, f.dst.carrier}} {
		if side.b != nil {
			if err := side.h.remove(ctx, side.b.name, true); err != nil {
				return mg.withServer(side.h, err)
			}
		}
	}
	if !f.src.leaving.restore.wasRunning {
		return nil
	}
	if f.src.leaving.kind == kindLeaving {
		if err := mg.source.renameContainer(ctx, f.src.leaving.name,
			mg.source.workName(kindLeft)+f.src.leaving.suffix); err != nil {
			return mg.withServer(mg.source, err)
		}
	}
	mg.driver.stepHook("left")
	if _, err := mg.destination.client.ContainerStart(ctx, f.dst.arriving.name,
		client.ContainerStartOptions{}); err != nil {
		return fmt.Errorf("the instance did not start on server %s: %w", mg.destination.server, err)
	}
	mg.driver.stepHook("started")
	return mg.waitHealthy(ctx, f.dst.arriving.name)
}

// switchOver renames the new container to the name of the instance. After that, the migration cannot be undone.
func (mg *migration) switchOver(ctx context.Context, f hostState) error {
	if f.isMoved() {
		return nil
	}
	if !f.hasArrived() {
		return fmt.Errorf("the container created on server %s has disappeared", mg.destination.server)
	}
	err := mg.destination.renameContainer(ctx, f.dst.arriving.name, mg.Instance)
	if errdefs.IsConflict(err) {
		return fmt.Errorf("server %s now has another container %s; remove or rename it", mg.destination.server,
			mg.Instance)
	}
	return mg.withServer(mg.destination, err)
}

// cleanSource removes the instance from the source.
func (mg *migration) cleanSource(ctx context.Context, f hostState) error {
	if !f.isMoved() {
		return fmt.Errorf("container %s on server %s is not the migrated one", mg.Instance, mg.destination.server)
	}
	kept := mg.Stateful && !mg.CopyVolumes || mg.config.KeepSourceVolumes
	for _, b := range []*containerRef{f.src.carrier, f.src.leaving} {
		if b == nil {
			continue
		}
		if err := mg.source.remove(ctx, b.name, b == f.src.carrier || !kept); err != nil {
			return mg.withServer(mg.source, err)
		}
		mg.driver.stepHook("removed")
	}
	if f.dst.carrier != nil {
		if err := mg.destination.remove(ctx, f.dst.carrier.name, true); err != nil {
			return mg.withServer(mg.destination, err)
		}
	}
	if !mg.CopyVolumes || mg.config.KeepSourceVolumes {
		return nil
	}
	return mg.dropSourceVolumes(ctx, f.dst.inPlace)
}

// dropSourceVolumes removes the copied volumes from the source. It only logs a volume that cannot be removed.
func (mg *migration) dropSourceVolumes(ctx context.Context, home *containerRef) error {
	c, err := mg.destination.inspectContainer(ctx, home.name)
	if err != nil {
		return mg.withServer(mg.destination, err)
	}
	for _, name := range volumeNames(c) {
		r, err := mg.destination.client.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
		if err != nil {
			return mg.withServer(mg.destination, err)
		}
		if r.Volume.Labels[labelJob] != mg.JobID {
			continue
		}
		if err := mg.checkLeases(ctx); err != nil {
			return err
		}
		if _, err := mg.source.client.VolumeRemove(ctx, name, client.VolumeRemoveOptions{}); ignoreNotFound(err) != nil {
			mg.log.Warn("could not remove moved volume from the source", "server", mg.source.server, "volume", name,
				"error", err)
		}
	}
	return nil
}

// describeError adds the server and advice for the operator to an error about disk space.
func (mg *migration) describeError(err error) error {
	text := err.Error()
	if strings.HasPrefix(text, "server "+mg.source.server+": ") {
		return err
	}
	if strings.Contains(text, "no space left on device") || strings.Contains(text, "disk quota exceeded") {
		return fmt.Errorf("server %s has not enough disk space for the instance; free some space or choose another "+
			"server: %w", mg.destination.server, err)
	}
	return err
}
