package migration

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// jobSpec is what a job is to do. It never changes.
type jobSpec struct {
	ID          string `json:"id"`
	Hub         string `json:"hub"`
	Account     string `json:"account,omitempty"`
	Environment string `json:"environment,omitempty"`
	Cluster     string `json:"cluster"`
	Container   string `json:"container"`
	Instance    string `json:"instance"`
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Stateful    bool   `json:"stateful,omitempty"`
	CopyVolumes bool   `json:"copy_volumes,omitempty"`
	// Options are the other members of value.stateful, as they came.
	Options json.RawMessage `json:"options,omitempty"`
	// Key names the key that asked for it.
	Key string `json:"key,omitempty"`
}

func (o *jobSpec) encode() (string, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return "", fmt.Errorf("encode a job: %w", err)
	}
	return string(text), nil
}

// job is one migration, as it stands.
type job struct {
	jobSpec
	State   relay.JobState
	Changed time.Time
	// Error is why it has failed; of a job that goes on, what went wrong last.
	Error string

	Queued    time.Time
	Started   time.Time // zero before
	Completed time.Time // zero before

	// Steps are the driver's, once the job runs.
	Steps []relay.MigrationStep
	// Progress is the latest of each step that has begun.
	Progress map[string]relay.Progress

	lease     int64
	attempts  int
	undo      bool
	isDamaged bool // its order is lost
	// sourceSettings and destinationSettings are those of this node's inventory file when it began to work on the job.
	sourceSettings, destinationSettings []byte
	// queuedLocal is when it was queued by this node's clock, whatever that shows; only what was taken up has it.
	queuedLocal time.Time
}

// noteClocks notes what Redis' clock and ours say at once. A job of which nobody knows since when it waits begins to wait now.
func (j *job) noteClocks(redis, here time.Time) {
	j.queuedLocal = here
	if !j.Queued.IsZero() {
		j.queuedLocal = here.Add(-redis.Sub(j.Queued))
	}
}

// Caption says in a line what the job does.
func (j *job) Caption() string {
	return fmt.Sprintf("Migrate instance %s of container %s from %s to %s", j.Instance, j.Container, j.Source, j.Destination)
}

// stepField is the field of a job's hash that holds the progress of a step.
const stepField = "step:"

// progressRecord is a relay.Progress in a job's hash, where its step is the field's name.
type progressRecord struct {
	Completed bool      `json:"completed,omitempty"`
	Bytes     int64     `json:"bytes,omitempty"`
	Total     int64     `json:"total,omitempty"`
	Note      []byte    `json:"note,omitempty"`
	Time      time.Time `json:"time"`
}

func encodeProgress(p relay.Progress) (string, error) {
	text, err := json.Marshal(progressRecord{Completed: p.Completed, Bytes: p.Bytes, Total: p.Total, Note: p.Note, Time: p.Time})
	if err != nil {
		return "", fmt.Errorf("encode the progress of %s: %w", p.Step, err)
	}
	return string(text), nil
}

// errDamaged means that what Redis holds of a job cannot be read.
var errDamaged = errors.New("the record of the job cannot be read")

// decodeJob reads the fields of a job's hash. What cannot be read of how far it is counts as not there, since the driver looks
// for itself.
func decodeJob(fields map[string]string) (*job, error) {
	j := &job{
		State: relay.JobState(fields["state"]), Error: fields["error"], undo: fields["undo"] == "1",
		Progress: make(map[string]relay.Progress),
	}
	if err := json.Unmarshal([]byte(fields["order"]), &j.jobSpec); err != nil {
		return nil, fmt.Errorf("%w: its order: %w", errDamaged, err)
	}
	number := func(name string) int64 {
		n, err := strconv.ParseInt(fields[name], 10, 64)
		if err != nil {
			return 0
		}
		return n
	}
	at := func(name string) time.Time {
		if ms := number(name); ms != 0 {
			return time.UnixMilli(ms).UTC()
		}
		return time.Time{}
	}
	j.Changed, j.Queued, j.Started, j.Completed = at("changed"), at("queued"), at("started"), at("completed")
	j.lease, j.attempts = number("lease"), int(number("attempts"))
	if json.Unmarshal([]byte(fields["steps"]), &j.Steps) != nil {
		j.Steps = nil
	}
	for name, text := range fields {
		step, ok := strings.CutPrefix(name, stepField)
		if !ok {
			continue
		}
		var p progressRecord
		if json.Unmarshal([]byte(text), &p) != nil {
			continue
		}
		j.Progress[step] = relay.Progress{Step: step, Completed: p.Completed, Bytes: p.Bytes, Total: p.Total, Note: p.Note, Time: p.Time}
	}
	return j, nil
}

// toMigration is the order to the driver.
func (j *job) toMigration() relay.Migration {
	return relay.Migration{
		JobID: j.ID, Lease: j.lease, Container: j.Container, Instance: j.Instance,
		Hub: j.Hub, Account: j.Account, Environment: j.Environment, Stateful: j.Stateful, CopyVolumes: j.CopyVolumes,
		Source:      relay.Server{ID: j.Source, Cluster: j.Cluster, Settings: j.sourceSettings},
		Destination: relay.Server{ID: j.Destination, Cluster: j.Cluster, Settings: j.destinationSettings},
		Done:        j.reportedSteps(), Undo: j.undo,
	}
}

// reportedSteps is what the driver is told of earlier calls.
func (j *job) reportedSteps() []relay.Progress {
	list := make([]relay.Progress, 0, len(j.Progress))
	for _, s := range j.Steps {
		if p, ok := j.Progress[s.ID]; ok {
			list = append(list, p)
		}
	}
	return list
}
