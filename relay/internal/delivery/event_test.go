package delivery

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/dispatch"
	"github.com/hubrelay/hubrelay/relay/internal/history"
)

// The explanation of 100,000 pairs of random events and sinks agrees with the dispatcher's decision.
func TestSinkFilter_AgreesWithDispatcher(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(values ...string) string { return values[random.IntN(len(values))] }
	some := func(values ...string) (list []string) {
		if random.IntN(3) > 0 {
			return nil
		}
		for range 1 + random.IntN(2) {
			list = append(list, pick(values...))
		}
		return list
	}
	hubs, accounts := []string{"h1", "h2", "h3"}, []string{"a1", "a2", ""}
	lists := []string{"x", "y", "z"}
	topics := []string{"container.created", "container.error", "job.created", "job.error", "billing.paid"}
	var sinks []dispatch.Sink
	var filters []sinkFilter
	var compiled []relay.Filter
	for i := range 200 {
		c := config.Sink{
			Topics: []string{pick("*", "*.error", "container.*", "!job.*", "billing.*", "job.created")},
			Hubs:   some(hubs...), Accounts: some(accounts[:2]...), Environments: some(lists...), Clusters: some(lists...),
			Containers: some(lists...),
			When: pick("", "", `object.state == "x"`, `topic startsWith "job" and object.id == "x"`, `"x" in context.containers`,
				`context.clusters[1] == "x"`),
		}
		filter, err := newFilter(c)
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprint("sink-", i)
		text, _ := json.Marshal(newSinkFilter(name, c))
		sinks = append(sinks, dispatch.Sink{Name: name, Filter: filter, Config: text})
		var stored sinkFilter
		if err := json.Unmarshal(text, &stored); err != nil {
			t.Fatal(err)
		}
		again, err := stored.compile()
		if err != nil {
			t.Fatal(err)
		}
		filters, compiled = append(filters, stored), append(compiled, again)
	}
	matcher := dispatch.NewMatcher(sinks)
	matches, rules := 0, make(map[string]int)
	for range 500 {
		n := relay.Notification{Topic: pick(topics...), Hub: pick(hubs...), Account: pick(accounts...)}
		e := relay.Envelope{
			Topic: n.Topic, Object: relay.Object{ID: pick(lists...), State: pick(lists...)},
			Context: relay.Context{
				HubID: n.Hub, AccountID: n.Account, Environments: some(lists...), Clusters: some(lists...),
				Containers: some(lists...), DNSZones: []string{},
			},
		}
		n.Data, _ = json.Marshal(e)
		if random.IntN(20) == 0 {
			n.Data = []byte("damaged")
		}
		found := matcher.Match(&n, nil)
		for i := range filters {
			rule, detail := filters[i].explain(compiled[i], n)
			if want := slices.Contains(found, i); (rule == "") != want {
				t.Fatalf("event %+v, filter %+v: the rule is %q (%s), but matched is %t", n, filters[i], rule, detail, want)
			}
			if rule == "" {
				matches++
			} else {
				name, _, _ := strings.Cut(rule, " ")
				rules[name]++
			}
		}
	}
	if matches < 1000 || len(rules) != 7 {
		t.Errorf("got %d matches and the rules %v, want many of each", matches, rules)
	}
}

func TestDescribeLast(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		last   history.Attempt
		state  adminapi.DeliveryState
		reason string
	}{
		{history.Attempt{State: history.StateDead}, adminapi.DeliveryDropped, "dead_letter_dropped"},
		{history.Attempt{State: history.StateRetrying, Time: time.Now()}, adminapi.DeliveryRetrying, ""},
		{history.Attempt{State: history.StateRetrying, Time: time.Now().Add(-time.Hour)}, adminapi.DeliveryUnknown, ""},
		{history.Attempt{State: history.StateWaiting, Time: time.Now().Add(-time.Hour)}, adminapi.DeliveryUnknown, ""},
	} {
		d := adminapi.EventSink{State: adminapi.DeliveryUnknown}
		describeLast(&d, &tt.last)
		if d.State != tt.state || d.Reason != tt.reason {
			t.Errorf("%+v: got %s, %q, want %s, %q", tt.last, d.State, d.Reason, tt.state, tt.reason)
		}
	}
}
