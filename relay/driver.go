package relay

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// Driver moves container instances between the servers of a cluster. Its methods may be called concurrently, but
// there is at most one Migrate per instance at a time.
//
// Several nodes may run a driver, and a suspended node may continue late. Therefore every [Migration] has a
// fencing token, its Lease. The driver stores the highest Lease of an instance on both servers. It compares and
// sets this value before each irreversible step, so a superseded Migrate changes nothing and returns
// [ErrSuperseded].
type Driver interface {
	// Describe returns a description of the driver. It is called before Configure.
	Describe(ctx context.Context) (DriverDescription, error)
	// Configure sets the servers and their instances. It is called before the first Migrate, and again after each
	// change of the inventory. An error names the server with invalid settings. It is shown to the operator.
	Configure(ctx context.Context, servers []Server) error
	// Migrate moves an instance, or continues what an earlier call began. It returns:
	//
	//   - nil if the instance is on the destination and no longer on the source;
	//   - an error marked by [Indeterminate] if the outcome is unknown. Migrate is called again later, first to
	//     continue and after a few attempts with Undo. If it is also marked by [Postpone], the driver did not get the call, and it does
	//     not count;
	//   - [ErrSuperseded] if a call with a higher lease has taken over. This call has changed nothing since then;
	//   - the error of ctx if the call was stopped. Another call continues, or has Undo if an operator has canceled the job;
	//   - any other error if the instance is on the source as before and nothing is left on the destination. The error
	//     tells the operator what to do.
	//
	// Migrate calls report with its progress. report does not block for long and may be called from any goroutine
	// until Migrate returns.
	Migrate(ctx context.Context, m Migration, report func(Progress)) error
	// Close releases resources. Instances continue to run. Close may be called twice.
	Close() error
}

// DriverKind describes the driver. Command hubrelay passes it to the daemon.
type DriverKind struct {
	// Config returns a pointer to a new struct with the defaults. Its fields have `koanf` tags.
	Config func() Config
	// Given reports whether the operator configured a driver. [Config.Check] is called only then.
	Given func(Config) bool
	// Open creates the driver from a filled and valid Config. It starts nothing and does not dial.
	Open func(DriverSettings, Config) (Driver, error)
}

// DriverSettings are the settings of a driver that come from the daemon.
type DriverSettings struct {
	// Relay identifies the relay and its data across restarts. A driver uses it to recognize its own processes.
	Relay string
	// Dir is the directory of the configuration file, for relative paths.
	Dir string
	// Log is the logger of the driver. It is never nil.
	Log *slog.Logger
	// CountEvent counts an event inside the driver; see [SinkSettings].
	CountEvent func(event string)
}

// DriverDescription describes a driver.
type DriverDescription struct {
	Name    string
	Version string
	// Steps are the steps of every migration, in order. Each becomes a task of the job.
	Steps []MigrationStep
}

// MigrationStep is a visible part of a migration.
type MigrationStep struct {
	// ID consists of lower-case letters, such as "copy".
	ID string
	// Caption is a short description, such as "Copy volumes".
	Caption string
}

// Server is a host of instances.
type Server struct {
	ID      string
	Cluster string
	// Settings is the part of the inventory that belongs to the driver, as a JSON object.
	Settings []byte
	// Instances are the IDs of the instances on the server. Only Configure sets them.
	Instances []string
}

// Migration is a request to move one instance.
type Migration struct {
	JobID string
	// Lease is a fencing token. It increases with each worker that takes over a migration of this instance, across
	// all jobs.
	Lease int64
	// Container and Instance identify what to move.
	Container string
	Instance  string
	// Hub, Account and Environment belong to the container. Account and Environment may be empty.
	Hub         string
	Account     string
	Environment string
	// Stateful is set if the instance has volumes.
	Stateful bool
	// CopyVolumes requests a copy of the volumes. Without it a stateful instance starts with empty volumes, and the
	// old volumes remain on the source.
	CopyVolumes bool
	// Source and Destination are taken from the inventory at the start of the migration.
	Source      Server
	Destination Server
	// Done contains the last report of each step from earlier calls for this job. The report of a completed step may
	// be missing, but a step is never reported as completed before it is.
	Done []Progress
	// Undo requests to move the instance back to the source. If the instance already runs on the destination and
	// nothing is left on the source, the driver completes the migration instead and returns nil.
	Undo bool
}

// Progress is the progress of one step.
type Progress struct {
	// Step is the ID of a step.
	Step string
	// Completed is set when the step is completed. The driver does not repeat the step.
	Completed bool
	// Bytes is the number of processed bytes, of Total. Both are 0 if there is nothing to count. Total may grow.
	Bytes int64
	Total int64
	// Note is data for a later call, which finds it in [Migration.Done]. It has at most 64 KiB.
	Note []byte
	// Time is the time of the report. If it is zero, the receiver sets it.
	Time time.Time
}

// ErrSuperseded reports that a migration with a higher lease has taken over.
var ErrSuperseded = errors.New("another worker with a higher lease has taken over this migration")

// Indeterminate marks an error after which it is unknown whether the instance was moved.
func Indeterminate(err error) error {
	if err == nil {
		return nil
	}
	return &indeterminateError{err}
}

// IsIndeterminate reports whether err was marked by [Indeterminate].
func IsIndeterminate(err error) bool {
	var target *indeterminateError
	return errors.As(err, &target)
}

type indeterminateError struct{ error }

func (e *indeterminateError) Unwrap() error { return e.error }
