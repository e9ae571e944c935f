package directory

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// Name is what the driver is called behind "builtin:".
const Name = "directory"

// The steps of a migration.
const (
	stepClaim  = "claim"
	stepStop   = "stop"
	stepCopy   = "copy"
	stepVerify = "verify"
	stepSwitch = "switch"
	stepStart  = "start"
	stepClean  = "clean"
)

// Options are what the driver needs of the program that it is part of.
type Options struct {
	// AgentCommand is how a keeper is started: a program and its first arguments, such as /usr/bin/hubrelay keeper. What
	// [RunAgent] takes is put behind it. Without it only instances that run nothing can be moved.
	AgentCommand []string
	// Relay identifies the relay. The driver stops agents of this relay that its inventory does not name, and no others.
	Relay string
	// StableAfter is how long a command has to run on the destination before the source is given up; one second if it is zero.
	StableAfter time.Duration
}

// Driver moves instances between folders. See the package's comment.
type Driver struct {
	keepers  agentManager
	stepHook func(point string) // for tests: called between any two steps
}

var _ relay.Driver = (*Driver)(nil)

// New makes a driver.
func New(o Options) *Driver {
	return &Driver{
		keepers:  agentManager{command: o.AgentCommand, relay: cmp.Or(o.Relay, anyRelay), steady: cmp.Or(o.StableAfter, time.Second), pids: map[int]struct{}{}},
		stepHook: func(string) {},
	}
}

// Describe tells the steps.
func (d *Driver) Describe(context.Context) (relay.DriverDescription, error) {
	version := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		version = info.Main.Version
	}
	return relay.DriverDescription{Name: Name, Version: version, Steps: []relay.MigrationStep{
		{ID: stepClaim, Caption: "Claim both servers"},
		{ID: stepStop, Caption: "Stop on the source"},
		{ID: stepCopy, Caption: "Copy files"},
		{ID: stepVerify, Caption: "Verify checksums"},
		{ID: stepSwitch, Caption: "Switch to the destination"},
		{ID: stepStart, Caption: "Start on the destination"},
		{ID: stepClean, Caption: "Clean up the source"},
	}}, nil
}

// Configure checks the servers, stops the agents of instances that they do not name, and starts what ought to run on them
// and does not. Until stopped agents have ended it waits, for 30 s at most.
func (d *Driver) Configure(ctx context.Context, servers []relay.Server) error {
	paths := make(map[string]string, len(servers))
	for _, s := range servers {
		path, err := serverPath(s)
		if err != nil {
			return err
		}
		paths[s.ID] = path
	}
	d.keepers.stopUnnamed(ctx, servers, paths) // even if a server cannot be used
	if err := checkServers(servers, paths); err != nil {
		return err
	}
	for _, s := range servers {
		for _, instance := range s.Instances {
			if err := ctx.Err(); err != nil {
				return err
			}
			p := instanceDir{server: s.ID, path: paths[s.ID], instance: instance}
			if err := d.keepers.resumeInstance(p); err != nil {
				slog.Default().Warn("an instance could not be started; its folder's instance.json or output.log tell more",
					"server", s.ID, "instance", instance, "folder", filepath.Clean(p.instancePath()), "error", err)
			}
		}
	}
	return nil
}

// Close has nothing to release: instances and their keepers run on.
func (d *Driver) Close() error {
	d.keepers.isAlive(0)
	return nil
}

// Migrate moves an instance, as relay.Driver says. What is done shows on the disks, so that m.Done is not needed.
func (d *Driver) Migrate(ctx context.Context, m relay.Migration, report func(relay.Progress)) error {
	v, err := d.newMove(m, report)
	if err != nil {
		return err
	}
	return v.runMigration(ctx)
}

func (d *Driver) newMove(m relay.Migration, report func(relay.Progress)) (*migration, error) {
	for what, id := range map[string]string{"instance": m.Instance, "job": m.JobID} {
		if err := checkElement(what, id); err != nil {
			return nil, err
		}
	}
	if m.Lease <= 0 {
		return nil, fmt.Errorf("lease %d is not above zero", m.Lease)
	}
	from, err := serverPath(m.Source)
	if err != nil {
		return nil, err
	}
	to, err := serverPath(m.Destination)
	if err != nil {
		return nil, err
	}
	if isWithin(from, to) || isWithin(to, from) {
		return nil, fmt.Errorf("servers %s and %s must be folders apart: %s, %s", m.Source.ID, m.Destination.ID, from, to)
	}
	v := &migration{
		Migration: m, driver: d, report: report,
		source:      instanceDir{server: m.Source.ID, path: from, instance: m.Instance, lease: m.Lease},
		destination: instanceDir{server: m.Destination.ID, path: to, instance: m.Instance, lease: m.Lease},
	}
	return v, nil
}
