package status_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay/internal/lease"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
	"github.com/hubrelay/hubrelay/relay/internal/status"
)

// A sink works elsewhere if another node has it and has not reported that it failed. A node without a record may have it.
func TestNodes_WorksElsewhere(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		others            []string // records, "" for none
		want              bool
		failedOn, missing []string
	}{
		"alone":                 {nil, false, nil, nil},
		"works":                 {[]string{`{"sinks":["hook"]}`}, true, nil, nil},
		"failed":                {[]string{`{"sinks":["hook"],"failed_sinks":["hook"]}`}, false, []string{"node-1"}, nil},
		"another sink failed":   {[]string{`{"sinks":["hook","other"],"failed_sinks":["other"]}`}, true, nil, nil},
		"not configured":        {[]string{`{"sinks":["other"]}`}, false, nil, []string{"node-1"}},
		"no record":             {[]string{""}, true, nil, nil},
		"failed on one of both": {[]string{`{"sinks":["hook"],"failed_sinks":["hook"]}`, `{"sinks":["hook"]}`}, true, []string{"node-1"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := conntest.OpenMemory(t)
			leases := lease.NewManager(c, c.Keys())
			join := func(record string) string {
				n, err := leases.JoinNode(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(n.Leave)
				if record != "" {
					var fields map[string]any
					if err := json.Unmarshal([]byte(record), &fields); err != nil {
						t.Fatal(err)
					}
					fields["name"] = n.Name
					text, _ := json.Marshal(fields)
					if err := leases.StoreRecord(t.Context(), n.Name, text, time.Minute); err != nil {
						t.Fatal(err)
					}
				}
				return n.Name
			}
			nodes := status.NewNodes(leases, join(`{"sinks":["hook"]}`))
			for _, record := range test.others {
				join(record)
			}
			if works, err := nodes.WorksElsewhere(t.Context(), "hook"); err != nil || works != test.want {
				t.Errorf("works elsewhere: got %t, %v, want %t", works, err, test.want)
			}
			list := []adminapi.Sink{{Name: "hook", Configured: true}, {Name: "removed"}}
			if err := nodes.SetOtherNodes(t.Context(), list); err != nil {
				t.Fatal(err)
			}
			if s := list[0]; !slices.Equal(s.FailedOn, test.failedOn) || !slices.Equal(s.MissingOn, test.missing) {
				t.Errorf("got failed on %v, missing on %v, want %v, %v", s.FailedOn, s.MissingOn, test.failedOn, test.missing)
			}
			if s := list[1]; s.FailedOn != nil || s.MissingOn != nil {
				t.Errorf("a removed sink: got failed on %v, missing on %v", s.FailedOn, s.MissingOn)
			}
		})
	}
}
