package delivery

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/config"
)

func TestExplainTiming(t *testing.T) {
	t.Parallel()
	data := func(containers string) string {
		return `{"topic":"container.created","object":{"id":"","state":"","error":""},"context":{"hub_id":"h",` +
			`"account_id":"",` +
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
		{config.Sink{Ordering: "container"}, false, one, []string{"in order of its container and account"}},
		{
			config.Sink{Ordering: "container"},
			false, two,
			[]string{"in order of its hub, because it concerns no container or several"},
		},
		{
			config.Sink{Ordering: "container"},
			false, data(""),
			[]string{"in order of its hub, because it concerns no container or several"},
		},
		{config.Sink{Rate: relay.Rate{Count: 10, Per: time.Second}}, false, one, []string{"at most 10/s"}},
		{
			config.Sink{Rate: relay.Rate{Count: 1, Per: time.Second}, Ordering: "none"},
			true, one,
			[]string{"at most 1/s; events above the rate are combined into a digest"},
		},
		{
			config.Sink{Rate: relay.Rate{Count: 1, Per: time.Second}, Ordering: "hub"},
			true, one,
			[]string{"at most 1/s", "in order of its hub"},
		},
		{
			config.Sink{
				Rate: relay.Rate{Count: 5, Per: time.Hour}, Burst: 3, Digest: config.Digest{Wait: time.Hour, Max: 7},
			},
			true, one,
			[]string{
				"collected for 1h into a digest that lists up to 7; shown as a digest of one",
				"at most 5/h, up to 3 at once after a pause",
			},
		},
		{
			config.Sink{Batch: config.Batch{Wait: 1500 * time.Millisecond, Max: 100}},
			false, one,
			[]string{"in batches of up to 100, which wait for 1.5s at most unless full; shown as a batch of one"},
		},
	} {
		if got := explainTiming(tc.cfg, tc.gathers, relay.Notification{
			Data: []byte(tc.data),
		}); !slices.Equal(got, tc.want) {
			t.Errorf("%+v: %q, want %q", tc.cfg, got, tc.want)
		}
	}
}

// The preview has the same shared attributes as a real digest.
func TestDeliveryFor(t *testing.T) {
	t.Parallel()
	n := relay.Notification{
		ID: "65f0c2a00123456789abcdef", Topic: "a.b", Hub: "h",
		Data: []byte(`{"topic":"a.b","object":{"id":"","state":"","error":""},` +
			`"context":{"hub_id":"h","account_id":"","environments":[],"dns_zones":[],"clusters":["us","eu","us"],` +
			`"containers":[]},"flags":null}`),
	}
	if d := deliveryFor(config.Sink{Digest: config.Digest{Max: 20, By: []string{"hub"}}}, n); d.Digest != nil {
		t.Errorf("digest without wait: got %+v", d.Digest)
	}
	if d := deliveryFor(config.Sink{Batch: config.Batch{Wait: time.Second}}, n); !d.Batch {
		t.Errorf("want a batch, got %+v", d)
	}
	d := deliveryFor(config.Sink{Digest: config.Digest{Wait: time.Second, By: []string{"topic", "hub", "cluster"}}},
		n).Digest
	if d == nil || d.Count != 1 ||
		!maps.Equal(d.Shared, map[string]string{"topic": "a.b", "hub": "h", "cluster": "eu, us"}) ||
		d.Topics["a.b"] != 1 || d.First.Unix() != 0x65f0c2a0 || !d.Last.Equal(d.First) {
		t.Errorf("%+v", d)
	}
	n.Data = []byte(`{}`)
	if d := deliveryFor(config.Sink{Digest: config.Digest{Wait: time.Second, By: []string{"cluster"}}},
		n).Digest; d == nil || d.Shared != nil {
		t.Errorf("without a cluster: got %+v", d)
	}
}
