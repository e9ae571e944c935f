package adminserver

import (
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

func TestReplayRequest_Selects(t *testing.T) {
	t.Parallel()
	operational := relay.Notification{ID: "o", Topic: relay.TopicSinkDisabled, Hub: "h"}
	job := relay.Notification{ID: "j", Topic: "job.created", Hub: "h"}
	other := relay.Notification{ID: "x", Topic: "job.created", Hub: "other"}
	for name, tc := range map[string]struct {
		request replayRequest
		want    [3]bool // operational, job, other
	}{
		"all":     {replayRequest{After: "0-0"}, [3]bool{true, true, true}},
		"a hub":   {replayRequest{After: "0-0", Hub: "h"}, [3]bool{true, true, false}},
		"a topic": {replayRequest{After: "0-0", Topic: "job.*"}, [3]bool{false, true, true}},
		"IDs":     {replayRequest{IDs: []string{"o", "x"}}, [3]bool{true, false, true}},
		"both":    {replayRequest{IDs: []string{"o", "x"}, Topic: "job.*"}, [3]bool{false, false, true}},
	} {
		selection, err := tc.request.toSelection(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		got := [3]bool{selection.Selects(operational), selection.Selects(job), selection.Selects(other)}
		if got != tc.want {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
}
