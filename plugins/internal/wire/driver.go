package wire

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/hubrelay/hubrelay/plugins/proto/driver/v1"
	"github.com/hubrelay/hubrelay/relay"
)

// MaxNote is the maximum length of the note in a progress report, in bytes.
const MaxNote = 64 << 10

// FromDescription converts d to its message.
func FromDescription(d relay.DriverDescription) *driverv1.DescribeResponse {
	m := &driverv1.DescribeResponse{Name: d.Name, Version: d.Version}
	for _, s := range d.Steps {
		m.Steps = append(m.Steps, &driverv1.Step{Id: s.ID, Caption: s.Caption})
	}
	return m
}

// ToDescription is the inverse of FromDescription. An error describes an invalid description.
func ToDescription(m *driverv1.DescribeResponse) (relay.DriverDescription, error) {
	d := relay.DriverDescription{Name: m.GetName(), Version: m.GetVersion()}
	for _, s := range m.GetSteps() {
		d.Steps = append(d.Steps, relay.MigrationStep{ID: s.GetId(), Caption: s.GetCaption()})
	}
	return d, checkDescription(d)
}

const (
	maxSteps   = 32
	maxCaption = 100
)

var (
	driverName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	stepID     = regexp.MustCompile(`^[a-z]{1,32}$`)
)

func checkDescription(d relay.DriverDescription) error {
	if !driverName.MatchString(d.Name) {
		return fmt.Errorf("its name %q must be up to 32 lower-case letters, digits and hyphens",
			relay.Truncate(d.Name, 60))
	}
	if d.Version != truncate(d.Version) || len(d.Version) > maxCaption {
		return fmt.Errorf("its version is not a string of at most %d bytes", maxCaption)
	}
	if len(d.Steps) == 0 || len(d.Steps) > maxSteps {
		return fmt.Errorf("it has %d steps, but must have 1 to %d", len(d.Steps), maxSteps)
	}
	seen := map[string]bool{}
	for _, s := range d.Steps {
		switch {
		case !stepID.MatchString(s.ID):
			return fmt.Errorf("the step %q must have an id of up to 32 lower-case letters, such as \"copy\"",
				relay.Truncate(s.ID, 60))
		case seen[s.ID]:
			return fmt.Errorf("two steps have the id %q", s.ID)
		case strings.TrimSpace(s.Caption) == "" || s.Caption != truncate(s.Caption) || len(s.Caption) > maxCaption:
			return fmt.Errorf("the step %q must have a caption of at most %d bytes, such as \"Copy volumes\"", s.ID,
				maxCaption)
		}
		seen[s.ID] = true
	}
	return nil
}

// FromServers converts a list of servers to messages.
func FromServers(list []relay.Server) []*driverv1.Server {
	servers := make([]*driverv1.Server, 0, len(list))
	for i := range list {
		servers = append(servers, fromServer(&list[i]))
	}
	return servers
}

// ToServers is the inverse of FromServers.
func ToServers(list []*driverv1.Server) []relay.Server {
	servers := make([]relay.Server, 0, len(list))
	for _, m := range list {
		servers = append(servers, toServer(m))
	}
	return servers
}

func fromServer(s *relay.Server) *driverv1.Server {
	return &driverv1.Server{Id: s.ID, Cluster: s.Cluster, Settings: s.Settings, Instances: s.Instances}
}

func toServer(m *driverv1.Server) relay.Server {
	return relay.Server{ID: m.GetId(), Cluster: m.GetCluster(), Settings: m.GetSettings(), Instances: m.GetInstances()}
}

// FromMigration converts m to its message.
func FromMigration(m relay.Migration) *driverv1.MigrateRequest {
	r := &driverv1.MigrateRequest{
		JobId: m.JobID, Lease: m.Lease, Container: m.Container, Instance: m.Instance,
		Hub: m.Hub, Account: m.Account, Environment: m.Environment,
		Stateful: m.Stateful, CopyVolumes: m.CopyVolumes,
		Source: fromServer(&m.Source), Destination: fromServer(&m.Destination), Undo: m.Undo,
	}
	for i := range m.Done {
		r.Done = append(r.Done, FromProgress(m.Done[i]))
	}
	return r
}

// ToMigration is the inverse of FromMigration.
func ToMigration(r *driverv1.MigrateRequest) relay.Migration {
	m := relay.Migration{
		JobID: r.GetJobId(), Lease: r.GetLease(), Container: r.GetContainer(), Instance: r.GetInstance(),
		Hub: r.GetHub(), Account: r.GetAccount(), Environment: r.GetEnvironment(),
		Stateful: r.GetStateful(), CopyVolumes: r.GetCopyVolumes(),
		Source: toServer(r.GetSource()), Destination: toServer(r.GetDestination()), Undo: r.GetUndo(),
	}
	for _, p := range r.GetDone() {
		m.Done = append(m.Done, ToProgress(p))
	}
	return m
}

// FromProgress converts p to its message.
func FromProgress(p relay.Progress) *driverv1.Progress {
	return &driverv1.Progress{
		Step: p.Step, Completed: p.Completed, Bytes: p.Bytes, Total: p.Total, Note: p.Note, TimeNs: fromTime(p.Time),
	}
}

// ToProgress is the inverse of FromProgress.
func ToProgress(m *driverv1.Progress) relay.Progress {
	return relay.Progress{
		Step: m.GetStep(), Completed: m.GetCompleted(), Bytes: m.GetBytes(), Total: m.GetTotal(), Note: m.GetNote(),
		Time: toTime(m.GetTimeNs()),
	}
}

// ErrCancelled is the result of a migration that was stopped.
var ErrCancelled = errors.New("the migration was stopped")

// FromResult converts the result of Migrate to its message. ctx is the context of Migrate.
func FromResult(ctx context.Context, err error) *driverv1.Result {
	switch {
	case err == nil:
		return &driverv1.Result{Outcome: driverv1.Outcome_OUTCOME_MOVED}
	case relay.IsIndeterminate(err):
		return &driverv1.Result{Outcome: driverv1.Outcome_OUTCOME_UNSETTLED, Error: truncate(err.Error())}
	case errors.Is(err, relay.ErrSuperseded):
		return &driverv1.Result{Outcome: driverv1.Outcome_OUTCOME_SUPERSEDED}
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return &driverv1.Result{Outcome: driverv1.Outcome_OUTCOME_CANCELLED}
	}
	return &driverv1.Result{Outcome: driverv1.Outcome_OUTCOME_FAILED, Error: truncate(err.Error())}
}

// ToResult returns the error of a result, or nil for success. The text is untrusted, as in ToOutcome.
func ToResult(m *driverv1.Result) error {
	failed := pluginError(m.GetError(), nil)
	switch m.GetOutcome() {
	case driverv1.Outcome_OUTCOME_MOVED:
		return nil
	case driverv1.Outcome_OUTCOME_FAILED:
		return failed
	case driverv1.Outcome_OUTCOME_UNSETTLED:
		return relay.Indeterminate(failed)
	case driverv1.Outcome_OUTCOME_SUPERSEDED:
		return relay.ErrSuperseded
	case driverv1.Outcome_OUTCOME_CANCELLED:
		return ErrCancelled
	}
	return relay.Indeterminate(fmt.Errorf("the result of the driver has the unknown outcome %d: %w",
		m.GetOutcome(), failed))
}
