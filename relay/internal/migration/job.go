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

// jobSpec is the request of a job. It never changes.
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
	// Key is the name of the API key of the request.
	Key string `json:"key,omitempty"`
}

func (j *jobSpec) encode() (string, error) {
	text, err := json.Marshal(j)
	if err != nil {
		return "", fmt.Errorf("encode a job: %w", err)
	}
	return string(text), nil
}

// job is one migration with its current state.
type job struct {
	jobSpec
	State   relay.JobState
	Changed time.Time
	// Error is the cause of a failed job, or the last problem of a running one.
	Error string

	Queued    time.Time
	Started   time.Time // zero before the start
	Completed time.Time // zero before the end

	// Steps are the steps of the driver. They are set when the job starts.
	Steps []relay.MigrationStep
	// Progress is the last report of each step that has started.
	Progress map[string]relay.Progress

	lease     int64
	attempts  int
	undo      bool
	canceled  bool // by an operator
	isDamaged bool // the spec cannot be read
	// sourceSettings and destinationSettings are copied from the inventory file of this node when it starts to work on
	// the job.
	sourceSettings, destinationSettings []byte
	// queuedLocal is the time of the request on the clock of this node. It is set only for claimed jobs.
	queuedLocal time.Time
}

// setQueuedLocal sets queuedLocal from simultaneous readings of the clock of Redis and the local clock. If the
// time of the request is unknown, the job counts as queued now.
func (j *job) setQueuedLocal(redis, local time.Time) {
	j.queuedLocal = local
	if !j.Queued.IsZero() {
		j.queuedLocal = local.Add(-redis.Sub(j.Queued))
	}
}

// Caption returns a one-line description of the job.
func (j *job) Caption() string {
	return fmt.Sprintf("Migrate instance %s of container %s from %s to %s", j.Instance, j.Container, j.Source,
		j.Destination)
}

// stepField is the prefix of the hash fields with the progress of steps.
const stepField = "step:"

// progressRecord is the stored form of a relay.Progress. The name of the hash field contains the step.
type progressRecord struct {
	Completed bool      `json:"completed,omitempty"`
	Bytes     int64     `json:"bytes,omitempty"`
	Total     int64     `json:"total,omitempty"`
	Note      []byte    `json:"note,omitempty"`
	Time      time.Time `json:"time"`
}

func encodeProgress(p relay.Progress) (string, error) {
	text, err := json.Marshal(progressRecord{
		Completed: p.Completed, Bytes: p.Bytes, Total: p.Total, Note: p.Note, Time: p.Time,
	})
	if err != nil {
		return "", fmt.Errorf("encode the progress of %s: %w", p.Step, err)
	}
	return string(text), nil
}

// errDamaged reports that the stored job cannot be read.
var errDamaged = errors.New("the stored job cannot be read")

func decodeJobSpec(text []byte) (spec jobSpec, err error) {
	if err := json.Unmarshal(text, &spec); err != nil {
		return jobSpec{}, fmt.Errorf("%w: decode the field order: %w", errDamaged, err)
	}
	return spec, nil
}

// decodeJob decodes the hash of a job. Progress that cannot be read is ignored, because the driver checks the
// servers itself.
func decodeJob(fields map[string]string) (*job, error) {
	j := &job{
		State: relay.JobState(fields["state"]), Error: fields["error"], undo: fields["undo"] == "1",
		canceled: fields["canceled"] == "1", Progress: make(map[string]relay.Progress),
	}
	var err error
	if j.jobSpec, err = decodeJobSpec([]byte(fields["order"])); err != nil {
		return nil, err
	}
	intField := func(name string) int64 {
		n, err := strconv.ParseInt(fields[name], 10, 64)
		if err != nil {
			return 0
		}
		return n
	}
	timeField := func(name string) time.Time {
		if ms := intField(name); ms != 0 {
			return time.UnixMilli(ms).UTC()
		}
		return time.Time{}
	}
	j.Changed, j.Queued, j.Started, j.Completed = timeField("changed"), timeField("queued"), timeField("started"),
		timeField("completed")
	j.lease, j.attempts = intField("lease"), int(intField("attempts"))
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
		j.Progress[step] = relay.Progress{
			Step: step, Completed: p.Completed, Bytes: p.Bytes, Total: p.Total, Note: p.Note, Time: p.Time,
		}
	}
	return j, nil
}

// toMigration returns the request to the driver.
func (j *job) toMigration() relay.Migration {
	return relay.Migration{
		JobID: j.ID, Lease: j.lease, Container: j.Container, Instance: j.Instance,
		Hub: j.Hub, Account: j.Account, Environment: j.Environment, Stateful: j.Stateful, CopyVolumes: j.CopyVolumes,
		Source:      relay.Server{ID: j.Source, Cluster: j.Cluster, Settings: j.sourceSettings},
		Destination: relay.Server{ID: j.Destination, Cluster: j.Cluster, Settings: j.destinationSettings},
		Done:        j.reportedSteps(), Undo: j.undo,
	}
}

// reportedSteps returns the progress that the driver reported in earlier calls.
func (j *job) reportedSteps() []relay.Progress {
	list := make([]relay.Progress, 0, len(j.Progress))
	for _, s := range j.Steps {
		if p, ok := j.Progress[s.ID]; ok {
			list = append(list, p)
		}
	}
	return list
}
