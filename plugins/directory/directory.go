package directory

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/hubrelay/hubrelay/plugins/sdk"
	"github.com/hubrelay/hubrelay/relay"
)

// Name is the name of the driver after "builtin:".
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

// Options are the settings that the program passes to the driver.
type Options struct {
	// AgentCommand starts an agent: a program and its first arguments, such as /usr/bin/hubrelay agent. The driver
	// appends the arguments of [RunAgent]. If it is empty, the driver can only move instances without a command.
	AgentCommand []string
	// Relay identifies the relay. The driver stops only agents of this relay whose instance is not in the inventory.
	Relay string
	// StableAfter is the time that a command must run on the destination before the source is removed. Zero means one
	// second.
	StableAfter time.Duration
}

// Driver moves instances between directories. See the package documentation.
type Driver struct {
	agents   agentManager
	stepHook func(point string) // called between steps, for tests
}

var _ relay.Driver = (*Driver)(nil)

// New returns a driver.
func New(o Options) *Driver {
	return &Driver{
		agents: agentManager{
			command: o.AgentCommand, relay: cmp.Or(o.Relay, anyRelay), stableAfter: cmp.Or(o.StableAfter, time.Second),
			pids: map[int]struct{}{},
		},
		stepHook: func(string) {},
	}
}

// Describe returns the name, the version and the steps of the driver.
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

// Configure checks the servers, stops the agents of instances that are not on them, and starts missing agents. It waits
// up to 30 s for stopped agents to end. If the directories of some servers cannot be used, it starts the agents of the others,
// and returns an error. If the settings of a server are invalid, nothing changes.
func (d *Driver) Configure(ctx context.Context, servers []relay.Server) error {
	paths := make(map[string]string, len(servers))
	for _, s := range servers {
		path, err := serverPath(s)
		if err != nil {
			return err
		}
		paths[s.ID] = path
	}
	d.agents.stopUnwanted(ctx, servers, paths) // even if a server is invalid
	usable, unusable := checkServers(servers, paths)
	for _, s := range usable {
		for _, instance := range s.Instances {
			if err := ctx.Err(); err != nil {
				return err
			}
			p := instanceDir{server: s.ID, path: paths[s.ID], instance: instance}
			if err := d.agents.resumeInstance(p); err != nil {
				slog.Default().Warn("could not start instance", "server", s.ID, "instance_id", instance,
					"path", filepath.Clean(p.instancePath()), "error", err)
			}
		}
	}
	return unusable
}

// Close reaps agents that have ended. Instances and their agents continue to run.
func (d *Driver) Close() error {
	d.agents.isAlive(0)
	return nil
}

// Migrate moves an instance; see relay.Driver. Finished steps are visible on the disks, so m.Done is not used.
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
		return nil, fmt.Errorf("lease %d is not positive", m.Lease)
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
		return nil, fmt.Errorf("directories of servers %s and %s must not contain each other: %s, %s", m.Source.ID,
			m.Destination.ID, from, to)
	}
	v := &migration{
		Migration: m, driver: d, report: report,
		source:      instanceDir{server: m.Source.ID, path: from, instance: m.Instance, lease: m.Lease},
		destination: instanceDir{server: m.Destination.ID, path: to, instance: m.Instance, lease: m.Lease},
	}
	return v, nil
}

// checkOwner rejects a file or directory that another user could change. It must belong to this user or root, and only
// its owner may write to it, because the contents of a server's directory run as this user.
func checkOwner(path string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("the owner of %s is unknown", path)
	}
	if uid := int(stat.Uid); uid != 0 && uid != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d; change its owner to user %d, which runs hubrelay, or to root",
			path, uid, os.Geteuid())
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("%s has mode %04o, so other users can write to it; run chmod go-w on it", path, mode)
	}
	return nil
}

// checkOwnerAt calls checkOwner for the file or directory at a path. It follows symbolic links.
func checkOwnerAt(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return checkOwner(path, info)
}

// Serve runs the driver as a plugin until the daemon stops it.
func Serve(o Options) error { return sdk.ServeDriver(New(o)) }
