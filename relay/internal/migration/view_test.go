package migration

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
)

// A job that has ended has no running steps.
func TestToView_EndedJobHasNoRunningStep(t *testing.T) {
	t.Parallel()
	for state, want := range map[relay.JobState][3]relay.JobState{
		relay.JobRunning:   {relay.JobRunning, relay.JobRunning, relay.JobNew},
		relay.JobError:     {relay.JobError, relay.JobError, relay.JobNew},
		relay.JobCompleted: {relay.JobCompleted, relay.JobCompleted, relay.JobCompleted},
	} {
		j := &job{State: state, Error: "why", Steps: []relay.MigrationStep{
			{ID: "a"}, {ID: "b"}, {ID: "c"},
		}, Progress: map[string]relay.Progress{
			"a": {Step: "a", Bytes: 1, Total: 2}, "b": {Step: "b", Bytes: 1, Total: 3},
		}}
		var got [3]relay.JobState
		for i, task := range j.toView().Tasks {
			got[i] = task.State.Current
			if failed := state != relay.JobCompleted && i == 1; failed != (task.Error.String() == "why") {
				t.Errorf("%s: got error %q of step %d", state, task.Error, i)
			}
			if (task.Progress == 100) != (got[i] == relay.JobCompleted) {
				t.Errorf("%s: step %d: got %d %%", state, i, task.Progress)
			}
		}
		compare(t, string(state), got, want)
	}
}

// Repeated reports of the same progress do not flood the log.
func TestProgress_RepeatsAreNotStored(t *testing.T) {
	t.Parallel()
	b := newRedis(t)
	s := newSite(t, b)
	s.work(b, "w1", &fakeDriver{migrate: func(_ context.Context, _ relay.Migration, report func(relay.Progress)) error {
		for start := time.Now(); time.Since(start) < 200*time.Millisecond; {
			report(relay.Progress{Step: "copy", Completed: true})
		}
		return errors.New("failed")
	}}, nil)
	id := s.migrate(0, "s2")
	s.awaitEnd(id)
	all, err := eventlog.New(s.b, s.b.Keys(), eventlog.Options{}).Range(t.Context(), b.Keys().Partition(hubA), "0-0", 10000)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(all) - len(s.events(id)); n > 30 { // at most one per 20 ms
		t.Errorf("got %d events of one step, want at most 30", n)
	}
}

func TestToView_ErrorIsNullOrMessage(t *testing.T) {
	steps := []relay.MigrationStep{{ID: "copy"}}
	progress := map[string]relay.Progress{"copy": {Step: "copy"}}
	for reason, want := range map[string]string{"": "null", "the disk is full": `{"message":"the disk is full"}`} {
		j := &job{State: relay.JobRunning, Error: reason, Steps: steps, Progress: progress}
		text, err := json.Marshal(j.toView())
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			State struct{ Error json.RawMessage }
			Tasks []struct{ Error json.RawMessage }
		}
		if err := json.Unmarshal(text, &got); err != nil || string(got.State.Error) != want ||
			string(got.Tasks[0].Error) != want {
			t.Errorf("%q: got %s, %v, want errors %s", reason, text, err, want)
		}
	}
}
