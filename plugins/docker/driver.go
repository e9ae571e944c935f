package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// Name is the name of the driver in its description.
const Name = "docker"

// The steps of a migration.
const (
	stepClaim   = "claim"
	stepCheck   = "check"
	stepImage   = "image"
	stepPrepare = "prepare"
	stepStop    = "stop"
	stepCopy    = "copy"
	stepVerify  = "verify"
	stepStart   = "start"
	stepSwitch  = "switch"
	stepClean   = "clean"
)

// Config is the configuration of the driver.
type Config struct {
	// HealthTimeout is the maximum time an instance needs to become healthy on the destination.
	HealthTimeout Duration `json:"health_timeout"`
	// Settle is the time that an instance without a health check must run there to count as healthy.
	Settle Duration `json:"settle"`
	// KeepSourceVolumes keeps the volumes on the source after they were copied.
	KeepSourceVolumes bool `json:"keep_source_volumes"`
}

// DefaultConfig returns the defaults of the configuration.
func DefaultConfig() Config {
	return Config{HealthTimeout: Duration(2 * time.Minute), Settle: Duration(3 * time.Second)}
}

// Validate checks that the times are in range.
func (c Config) Validate() error {
	for _, d := range []struct {
		key   string
		value Duration
	}{{"health_timeout", c.HealthTimeout}, {"settle", c.Settle}} {
		if d.value <= 0 || d.value > Duration(24*time.Hour) {
			return fmt.Errorf("%s must be positive and at most 24h", d.key)
		}
	}
	if c.Settle > c.HealthTimeout {
		return errors.New("settle must not exceed health_timeout")
	}
	return nil
}

// Duration is a time.Duration that is written as "90s" or "2m".
type Duration time.Duration

// UnmarshalJSON parses a JSON string such as "90s".
func (d *Duration) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("%s is not a duration such as \"90s\"", data)
	}
	v, err := time.ParseDuration(s)
	*d = Duration(v)
	return err
}

// Driver moves instances between Docker hosts. See the package documentation.
type Driver struct {
	config   *Config
	stepHook func(point string) // called between steps, for tests
}

var _ relay.Driver = (*Driver)(nil)

// New returns a driver. It reads the configuration at the start of each migration.
func New(config *Config) *Driver {
	return &Driver{config: config, stepHook: func(string) {}}
}

// Describe returns the name and the steps of the driver.
func (d *Driver) Describe(context.Context) (relay.DriverDescription, error) {
	return relay.DriverDescription{Name: Name, Steps: []relay.MigrationStep{
		{ID: stepClaim, Caption: "Claim both servers"},
		{ID: stepCheck, Caption: "Check the destination"},
		{ID: stepImage, Caption: "Copy the image"},
		{ID: stepPrepare, Caption: "Create on the destination"},
		{ID: stepStop, Caption: "Stop on the source"},
		{ID: stepCopy, Caption: "Copy volumes"},
		{ID: stepVerify, Caption: "Verify checksums"},
		{ID: stepStart, Caption: "Start and wait for health"},
		{ID: stepSwitch, Caption: "Switch to the destination"},
		{ID: stepClean, Caption: "Remove from the source"},
	}}, nil
}

// Configure checks the settings of the servers. It does not connect to the hosts, because an unreachable host must only
// affect its own migrations.
func (d *Driver) Configure(_ context.Context, servers []relay.Server) error {
	hosts := make(map[string]string, len(servers))
	for _, s := range servers {
		c, err := readSettings(s)
		if err != nil {
			return err
		}
		if other, ok := hosts[c.Host]; ok {
			return fmt.Errorf("server %s: host %q is already used by server %s", s.ID, c.Host, other)
		}
		hosts[c.Host] = s.ID
		for _, instance := range s.Instances {
			if err := checkInstance(instance); err != nil {
				return fmt.Errorf("server %s: %w", s.ID, err)
			}
		}
	}
	return nil
}

// Close does nothing, because the driver has no resources to release.
func (d *Driver) Close() error { return nil }

// Migrate moves an instance; see relay.Driver.
func (d *Driver) Migrate(ctx context.Context, m relay.Migration, report func(relay.Progress)) (err error) {
	if err := checkInstance(m.Instance); err != nil {
		return err
	}
	if m.Lease <= 0 {
		return fmt.Errorf("lease %d is not positive", m.Lease)
	}
	r := &reporter{report: report}
	defer r.stop()
	v := &migration{
		Migration: m, config: *d.config, driver: d, report: r.add,
		log: slog.Default().With("instance_id", m.Instance, "job_id", m.JobID), // writes to the daemon's log
	}
	for _, side := range []struct {
		server relay.Server
		to     **dockerHost
	}{{m.Source, &v.source}, {m.Destination, &v.destination}} {
		h, err := openHost(side.server, m.Instance, m.Lease)
		if err != nil {
			return err
		}
		defer func() { _ = h.client.Close() }() // the connections have no pending writes
		*side.to = h
	}
	return singleLine(v.runMigration(ctx))
}

// reporter forwards reports until the migration ends. It drops reports of streams that are still being read after that.
type reporter struct {
	mu     sync.Mutex
	report func(relay.Progress)
}

func (r *reporter) add(p relay.Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.report != nil {
		r.report(p)
	}
}

func (r *reporter) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report = nil
}
