package cli

import (
	"bytes"
	"testing"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/relay"
)

// Each step is printed, even if several have ended since the last request. The caller prints the end.
func TestJobProgress_PrintsLines(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := newJobProgress(term.Streams{Err: &out})
	var j relay.Job
	for _, caption := range []string{"Stop", "Copy", "Start"} {
		j.Tasks = append(j.Tasks, relay.JobTask{Caption: caption})
	}
	at := func(state relay.JobState, tasks ...relay.JobState) {
		j.State.Current = state
		for i, s := range tasks {
			j.Tasks[i].State.Current = s
		}
		p.show(j)
		p.show(j)
	}
	at(relay.JobQueued)
	at(relay.JobRunning, relay.JobRunning)
	at(relay.JobRunning, relay.JobCompleted, relay.JobCompleted, relay.JobRunning)
	at(relay.JobCompleted, relay.JobCompleted, relay.JobCompleted, relay.JobCompleted)
	if got, want := out.String(), "queued\nStop\nStop: done\nCopy: done\nStart\nStart: done\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
