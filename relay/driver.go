package relay

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// Driver moves container instances between the servers of a cluster: directories, Docker hosts, whatever a platform has.
// Its methods may be called concurrently; an instance is moved by one Migrate at a time.
//
// Several nodes may have a driver each, and a node that was stopped may wake up late. So every [Migration] has a lease
// number, and the driver keeps the highest that it has seen of an instance where the instance is: at both servers. It
// compares and sets that before each step that cannot be undone, so that an overtaken Migrate changes nothing and returns
// [ErrSuperseded].
type Driver interface {
	// Describe tells what the driver is. It is called before Configure.
	Describe(ctx context.Context) (DriverDescription, error)
	// Configure tells which servers there are and which instances are on them. It is called before the first Migrate, and
	// again when the inventory changes. An error names the server whose settings are of no use, and is shown to the operator.
	Configure(ctx context.Context, servers []Server) error
	// Migrate moves an instance, or goes on with what an earlier call began, and returns when that is over:
	//
	//   - nil: the instance is on the destination and no longer on the source;
	//   - an error marked by [Indeterminate]: neither that nor the opposite; Migrate is called again later, to go on at first and
	//     after a few times with Undo;
	//   - [ErrSuperseded]: a call with a higher lease has taken over, and this one has changed nothing since;
	//   - the error of ctx: the call was stopped on the way, in a state from which another goes on;
	//   - any other error: the instance is on the source as before, nothing is left on the destination, and the error is a
	//     sentence on which a person can act.
	//
	// Report tells how far it is. It does not block for long and may be called from any goroutine until Migrate returns.
	Migrate(ctx context.Context, m Migration, report func(Progress)) error
	// Close releases what the driver holds; instances run on. It may be called twice.
	Close() error
}

// DriverKind is how the daemon comes to its driver; cmd says which there is.
type DriverKind struct {
	// Config returns a pointer to a new struct with the defaults, whose fields carry `koanf` tags.
	Config func() DriverConfig
	// Open builds the driver from what Config returned, filled and validated. It starts nothing and does not dial.
	Open func(DriverSettings, DriverConfig) (Driver, error)
}

// DriverConfig is what an operator writes for a driver. It may be a [BaseDirSetter], a [ConfigWarner] and a [Preflight] too.
type DriverConfig interface {
	// Validate is as that of a [SinkConfig], and is called where something was given.
	Validate() error
	// IsSet tells whether the operator wants a driver at all.
	IsSet() bool
}

// DriverSettings is what the daemon hands to its driver, as opposed to what an operator writes in YAML.
type DriverSettings struct {
	// Relay identifies the relay and its data across restarts, so a driver tells its processes from those of other relays.
	Relay string
	// Log is the driver's own logger, never nil.
	Log *slog.Logger
	// Observe counts something that has happened inside the driver, as that of [SinkSettings] does.
	Observe func(event string)
}

// DriverDescription is what a driver says of itself.
type DriverDescription struct {
	Name    string
	Version string
	// Steps are what a migration goes through, in their order. Each becomes a task of the job.
	Steps []MigrationStep
}

// MigrationStep is a part of a migration that people can follow.
type MigrationStep struct {
	// ID is a word of lower-case letters, such as "copy".
	ID string
	// Caption says in a few words what is done, such as "Copy volumes".
	Caption string
}

// Server is where instances live.
type Server struct {
	ID      string
	Cluster string
	// Settings is what the inventory says of the server, a JSON object that only the driver understands.
	Settings []byte
	// Instances are the ids of the instances that are there now; only Configure is told.
	Instances []string
}

// Migration is the order to move one instance.
type Migration struct {
	JobID string
	// Lease grows with every worker that takes up a migration of this instance, over all jobs.
	Lease int64
	// Container and Instance name what is moved.
	Container string
	Instance  string
	// Hub, Account and Environment are those of the container; each but the hub may be empty.
	Hub         string
	Account     string
	Environment string
	// Stateful is set for an instance that has volumes to keep.
	Stateful bool
	// CopyVolumes asks for the contents of the volumes to be moved too. Without it a stateful instance starts with empty
	// volumes, and those of the source are kept there.
	CopyVolumes bool
	// Source and Destination are as the inventory had them when the migration began.
	Source      Server
	Destination Server
	// Done is what earlier calls for this job have reported, the latest of each step. A report may be missing although the
	// step was done, never the other way round.
	Done []Progress
	// Undo asks to bring the instance back to the source instead of going on. Where the instance runs on the destination
	// already and nothing is left to go back to, the driver completes the migration instead and returns nil.
	Undo bool
}

// Progress is how far a step of a migration is.
type Progress struct {
	// Step is the id of one of the driver's steps.
	Step string
	// Completed is set when the step is done; it is not repeated then.
	Completed bool
	// Bytes counts what was done, of Total. Both are 0 where there is nothing to count; Total may grow.
	Bytes int64
	Total int64
	// Note is what the driver wants to find in [Migration.Done] if another call goes on; up to 64 KiB.
	Note []byte
	// Time is when that was so. The receiver sets it where it is zero.
	Time time.Time
}

// ErrSuperseded says that a migration with a higher lease has taken over.
var ErrSuperseded = errors.New("another worker with a higher lease has taken over this migration")

// Indeterminate marks the error of a migration that has neither moved the instance nor left it on the source.
func Indeterminate(err error) error {
	if err == nil {
		return nil
	}
	return &indeterminateError{err}
}

// IsIndeterminate tells whether err was marked by [Indeterminate].
func IsIndeterminate(err error) bool {
	var unsettled *indeterminateError
	return errors.As(err, &unsettled)
}

type indeterminateError struct{ error }

func (e *indeterminateError) Unwrap() error { return e.error }
