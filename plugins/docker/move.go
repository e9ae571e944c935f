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

// move is one call of Migrate.
type move struct {
	relay.Migration
	config   Config
	driver   *Driver
	log      *slog.Logger
	report   func(relay.Progress)
	src, dst *host
	image    string            // of the container at the destination
	size     int64             // of what is to be copied, where that is known
	digests  map[string]string // of the contents of volumes
	arrival  string            // the container at the destination that has them
}

// found is what the hosts say of a migration.
type found struct {
	src, dst boxes
	lost     error // why the destination cannot be asked
}

// moved tells whether the destination has this instance in its place.
func (f found) moved() bool {
	switch {
	case f.dst.home == nil || f.src.home != nil:
		return false
	case f.src.away == nil:
		return true
	}
	return strings.HasPrefix(f.dst.home.id, f.src.away.ticket.arrival)
}

// arrived tells whether the container that the source's was stopped for is still waiting at the destination.
func (f found) arrived() bool {
	return f.src.away != nil && f.dst.arriving != nil && strings.HasPrefix(f.dst.arriving.id, f.src.away.ticket.arrival)
}

// look asks both hosts. A destination that does not answer is no error.
func (v *move) look(ctx context.Context) (f found, err error) {
	if f.src, err = v.src.look(ctx); err != nil {
		return f, v.at(v.src, err)
	}
	f.dst, f.lost = v.dst.look(ctx)
	if errors.Is(f.lost, relay.ErrSuperseded) || isStopped(ctx, f.lost) {
		return f, f.lost
	}
	return f, nil
}

// at says which server an error comes from.
func (v *move) at(h *host, err error) error {
	if err == nil || errors.Is(err, relay.ErrSuperseded) {
		return err
	}
	return fmt.Errorf("server %s: %w", h.server, err)
}

func (v *move) run(ctx context.Context) error {
	v.driver.between(stepClaim)
	if err := v.src.claim(ctx); err != nil {
		return v.unclaimed(ctx, err)
	}
	if err := v.dst.claim(ctx); err != nil {
		return v.back(ctx, fmt.Errorf("server %s cannot be used: %w", v.dst.server, err))
	}
	v.completed(stepClaim)
	if v.Undo {
		return v.back(ctx, fmt.Errorf("the migration was called off; the instance is on server %s as before", v.src.server))
	}
	if err := v.forward(ctx); err != nil {
		return v.back(ctx, v.explain(err))
	}
	return nil
}

// unclaimed is what becomes of a migration whose source cannot be asked.
func (v *move) unclaimed(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, relay.ErrSuperseded):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	}
	err = fmt.Errorf("server %s, where the instance is, cannot be used: %w", v.src.server, err)
	if v.Undo || len(v.Done) > 0 {
		return relay.Unsettled(err)
	}
	return err
}

func (v *move) forward(ctx context.Context) error {
	for _, step := range []struct {
		id string
		do func(context.Context, found) error
	}{
		{stepCheck, v.check},
		{stepImage, v.copyImage},
		{stepPrepare, v.prepare},
		{stepStop, v.stop},
		{stepCopy, v.copyVolumes},
		{stepVerify, v.verify},
		{stepStart, v.start},
		{stepSwitch, v.switchOver},
		{stepClean, v.clean},
	} {
		v.driver.between(step.id)
		if err := ctx.Err(); err != nil {
			return err
		}
		f, err := v.look(ctx)
		if err == nil && f.lost != nil {
			err = v.at(v.dst, f.lost)
		}
		if err == nil {
			err = step.do(ctx, f)
		}
		if err != nil {
			return err
		}
		v.completed(step.id)
	}
	return nil
}

func (v *move) completed(step string) {
	p := relay.Progress{Step: step, Completed: true}
	if step == stepCopy {
		p.Note = v.copyNote()
	}
	v.report(p)
}

// guard is asked right before what names no container of this lease.
func (v *move) guard(ctx context.Context) error {
	for _, h := range []*host{v.src, v.dst} {
		if err := h.check(ctx); err != nil {
			return v.at(h, err)
		}
	}
	return nil
}

// stop takes the instance out of its place, then stops it.
func (v *move) stop(ctx context.Context, f found) error {
	if f.moved() {
		return nil
	}
	if f.src.home != nil {
		if err := v.takeAway(ctx, f); err != nil {
			return err
		}
		var err error
		if f, err = v.look(ctx); err != nil {
			return err
		}
	}
	switch {
	case f.src.away == nil:
		return fmt.Errorf("there is no container %s on server %s any more", v.Instance, v.src.server)
	case f.src.away.kind == kindLeft:
		return nil
	}
	v.driver.between("taken away")
	name := f.src.away.name
	// Neither Docker nor a restart of it may start the container again.
	no := container.RestartPolicy{Name: container.RestartPolicyDisabled}
	if _, err := v.src.api.ContainerUpdate(ctx, name, client.ContainerUpdateOptions{RestartPolicy: &no}); err != nil {
		return v.at(v.src, err)
	}
	v.driver.between("unleashed")
	if _, err := v.src.api.ContainerStop(ctx, name, client.ContainerStopOptions{}); err != nil {
		return v.at(v.src, err)
	}
	v.driver.between("stopped")
	return nil
}

// takeAway renames the source. A process that is overtaken right before cannot be kept from it, so it looks again and puts
// the name back; nothing else has happened to the instance then.
func (v *move) takeAway(ctx context.Context, f found) error {
	if f.dst.arriving == nil {
		return fmt.Errorf("the container that was made on server %s has vanished", v.dst.server)
	}
	c, err := v.src.inspect(ctx, f.src.home.name)
	if err != nil {
		return v.at(v.src, err)
	}
	t := ticket{job: jobTag(v.JobID), arrival: shortID(f.dst.arriving.id), up: c.State.Running || c.State.Restarting, policy: c.HostConfig.RestartPolicy}
	away := v.src.work(kindLeaving) + "." + t.String()
	if err := v.guard(ctx); err != nil {
		return err
	}
	v.driver.between("take away")
	if err := v.src.rename(ctx, v.Instance, away); err != nil {
		return v.at(v.src, err)
	}
	if err := v.guard(ctx); errors.Is(err, relay.ErrSuperseded) {
		return errors.Join(err, ignoreNotFound(v.src.rename(ctx, away, v.Instance)))
	}
	return nil
}

func ignoreNotFound(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// start starts the instance at the destination. The source's name says so before, in case that the destination cannot be
// asked afterwards.
func (v *move) start(ctx context.Context, f found) error {
	if f.moved() {
		return nil
	}
	if !f.arrived() {
		return fmt.Errorf("the container that was made on server %s has vanished", v.dst.server)
	}
	for _, side := range []struct {
		h *host
		b *box
	}{{v.src, f.src.carrier}, {v.dst, f.dst.carrier}} {
		if side.b != nil {
			if err := side.h.remove(ctx, side.b.name, true); err != nil {
				return v.at(side.h, err)
			}
		}
	}
	if !f.src.away.ticket.up {
		return nil
	}
	if f.src.away.kind == kindLeaving {
		if err := v.src.rename(ctx, f.src.away.name, v.src.work(kindLeft)+f.src.away.suffix); err != nil {
			return v.at(v.src, err)
		}
	}
	v.driver.between("left")
	if _, err := v.dst.api.ContainerStart(ctx, f.dst.arriving.name, client.ContainerStartOptions{}); err != nil {
		return fmt.Errorf("the instance does not start on server %s: %w", v.dst.server, err)
	}
	v.driver.between("started")
	return v.healthy(ctx, f.dst.arriving.name)
}

// switchOver gives the container at the destination its name, which is the point of no return.
func (v *move) switchOver(ctx context.Context, f found) error {
	if f.moved() {
		return nil
	}
	if !f.arrived() {
		return fmt.Errorf("the container that was made on server %s has vanished", v.dst.server)
	}
	err := v.dst.rename(ctx, f.dst.arriving.name, v.Instance)
	if errdefs.IsConflict(err) {
		return fmt.Errorf("server %s has got another container %s meanwhile; remove or rename it", v.dst.server, v.Instance)
	}
	return v.at(v.dst, err)
}

// clean removes the instance from the source.
func (v *move) clean(ctx context.Context, f found) error {
	if !f.moved() {
		return fmt.Errorf("container %s on server %s is not the one that was moved", v.Instance, v.dst.server)
	}
	kept := v.Stateful && !v.CopyVolumes || v.config.KeepSourceVolumes
	for _, b := range []*box{f.src.carrier, f.src.away} {
		if b == nil {
			continue
		}
		if err := v.src.remove(ctx, b.name, b == f.src.carrier || !kept); err != nil {
			return v.at(v.src, err)
		}
		v.driver.between("removed")
	}
	if f.dst.carrier != nil {
		if err := v.dst.remove(ctx, f.dst.carrier.name, true); err != nil {
			return v.at(v.dst, err)
		}
	}
	if !v.CopyVolumes || v.config.KeepSourceVolumes {
		return nil
	}
	return v.dropSourceVolumes(ctx, f.dst.home)
}

// dropSourceVolumes removes the volumes whose contents were moved. One that cannot be removed is no failure.
func (v *move) dropSourceVolumes(ctx context.Context, home *box) error {
	c, err := v.dst.inspect(ctx, home.name)
	if err != nil {
		return v.at(v.dst, err)
	}
	for _, name := range volumeNames(c) {
		r, err := v.dst.api.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
		if err != nil {
			return v.at(v.dst, err)
		}
		if r.Volume.Labels[labelJob] != v.JobID {
			continue
		}
		if err := v.guard(ctx); err != nil {
			return err
		}
		if _, err := v.src.api.VolumeRemove(ctx, name, client.VolumeRemoveOptions{}); ignoreNotFound(err) != nil {
			v.log.Warn("a volume was moved and cannot be removed from the source", "server", v.src.server, "volume", name, "error", err)
		}
	}
	return nil
}

// explain makes a sentence for people of an error that says too little.
func (v *move) explain(err error) error {
	text := err.Error()
	if strings.HasPrefix(text, "server "+v.src.server+": ") {
		return err
	}
	if strings.Contains(text, "no space left on device") || strings.Contains(text, "disk quota exceeded") {
		return fmt.Errorf("server %s has no room left for the instance, make some or choose another server: %w", v.dst.server, err)
	}
	return err
}
