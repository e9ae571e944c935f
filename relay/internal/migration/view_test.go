package migration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
)

// Once a job is over, none of its steps runs.
func TestStepsOfAJobThatIsOver(t *testing.T) {
	t.Parallel()
	for state, want := range map[relay.JobState][3]relay.JobState{
		relay.JobRunning:   {relay.JobRunning, relay.JobRunning, relay.JobNew},
		relay.JobError:     {relay.JobError, relay.JobError, relay.JobNew},
		relay.JobCompleted: {relay.JobCompleted, relay.JobCompleted, relay.JobCompleted},
	} {
		j := &job{State: state, Error: "why", Steps: []relay.MigrationStep{{ID: "a"}, {ID: "b"}, {ID: "c"}}, Progress: map[string]relay.Progress{
			"a": {Step: "a", Bytes: 1, Total: 2}, "b": {Step: "b", Bytes: 1, Total: 3},
		}}
		var got [3]relay.JobState
		for i, task := range j.toView().Tasks {
			got[i] = task.State.Current
			if failed := state != relay.JobCompleted && i == 1; failed != (task.Error == "why") {
				t.Errorf("%s: the error of step %d is %q", state, i, task.Error)
			}
			if (task.Progress == 100) != (got[i] == relay.JobCompleted) {
				t.Errorf("%s: step %d has %d %%", state, i, task.Progress)
			}
		}
		same(t, string(state), got, want)
	}
}

// A driver that says the same again and again does not flood the log.
func TestFloodOfReports(t *testing.T) {
	t.Parallel()
	b := newRedis(t)
	s := newSite(t, b)
	s.work(b, "w1", &fakeDriver{migrate: func(_ context.Context, _ relay.Migration, report func(relay.Progress)) error {
		for began := time.Now(); time.Since(began) < 200*time.Millisecond; {
			report(relay.Progress{Step: "copy", Completed: true})
		}
		return errors.New("enough")
	}}, nil)
	id := s.migrate(0, "s2")
	s.over(id)
	all, err := eventlog.New(s.b, s.b.Keys()).Range(t.Context(), b.Keys().Partition(hubA), "0-0", 10000)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(all) - len(s.told(id)); n > 30 { // 20 ms between two
		t.Errorf("%d events of one step", n)
	}
}
