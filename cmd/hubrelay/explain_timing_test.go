package main

import (
	"slices"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/config"
)

func TestTiming(t *testing.T) {
	t.Parallel()
	data := func(containers string) string {
		return `{"topic":"container.created","object":{"id":"","state":"","error":""},"context":{"hub_id":"h","account_id":"",` +
			`"environments":[],"dns_zones":[],"clusters":[],"containers":[` + containers + `]},"flags":null}`
	}
	one, two := data(`"c1"`), data(`"c1","c2"`)
	for _, tc := range []struct {
		cfg     config.Sink
		gathers bool
		data    string
		want    []string
	}{
		{config.Sink{Ordering: "none"}, false, one, nil},
		{config.Sink{Ordering: "none"}, true, one, nil},
		{config.Sink{Ordering: "hub"}, false, one, []string{"in order of its hub"}},
		{config.Sink{Ordering: "container"}, false, one, []string{"in order of its container"}},
		{config.Sink{Ordering: "container"}, false, two, []string{"in order of its hub, since it concerns no container or several"}},
		{config.Sink{Ordering: "container"}, false, data(""), []string{"in order of its hub, since it concerns no container or several"}},
		{config.Sink{Rate: relay.Rate{Count: 10, Per: time.Second}}, false, one, []string{"at most 10/s"}},
		{
			config.Sink{Rate: relay.Rate{Count: 5, Per: time.Hour}, Burst: 3, Digest: config.Digest{Wait: time.Hour, Max: 7}},
			true, one,
			[]string{"gathered for 1h into a digest that lists up to 7; shown as a digest of one", "at most 5/h, up to 3 at once after a pause"},
		},
	} {
		if got := timing(tc.cfg, tc.gathers, relay.Notification{Data: []byte(tc.data)}); !slices.Equal(got, tc.want) {
			t.Errorf("%+v: %q, want %q", tc.cfg, got, tc.want)
		}
	}
}
