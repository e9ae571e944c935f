package relay

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func mustPatterns(t *testing.T, list ...string) Patterns {
	t.Helper()
	p, err := ParsePatterns(list)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func constantCondition(passes bool, err error) Condition {
	return func(*Envelope) (bool, error) { return passes, err }
}

// Each case calls Explain and Match, which must never disagree.
func TestFilter_MatchAgreesWithExplain(t *testing.T) {
	errorsOnly := mustPatterns(t, "*.error", "!billing.*")
	n := Notification{
		ID: "1", Topic: "job.error", Hub: "h1", Account: "a1",
		Data: json.RawMessage(`{"topic":"job.error","object":{"id":"o"},"context":{"hub_id":"h1",` +
			`"environments":["e1","e2"],"clusters":["production"],"containers":[]}}`),
	}
	for name, tc := range map[string]struct {
		filter Filter
		want   bool
		reason string
	}{
		"everything": {Filter{}, true, "topics is empty"},
		"topic":      {Filter{Topics: errorsOnly}, true, `topics has "*.error"`},
		"other topic": {
			Filter{Topics: mustPatterns(t, "job.created", "hub.*")},
			false,
			"topics has no pattern that matches job.error: job.created,hub.*",
		},
		"excluded": {
			Filter{Topics: mustPatterns(t, "*", "!job.*")}, false, `topics excludes job.error by "!job.*"`,
		},
		"exclusions": {Filter{Topics: mustPatterns(t, "!hub.*")}, true, "topics excludes only others"},
		"hub":        {Filter{Hubs: []string{"h0", "h1"}}, true, "topics is empty"},
		"other hub":  {Filter{Hubs: []string{"h10"}}, false, `hubs does not list the hub "h1"`},
		"account":    {Filter{Accounts: []string{"a1"}}, true, "topics is empty"},
		"other account": {
			Filter{Hubs: []string{"h1"}, Accounts: []string{""}}, false, `accounts does not list the account "a1"`,
		},
		"all three": {
			Filter{Topics: errorsOnly, Hubs: []string{"h1"}, Accounts: []string{"a1"}}, true, `"*.error"`,
		},
		"environment": {Filter{Environments: []string{"e9", "e2"}}, true, "topics is empty"},
		"other": {
			Filter{Environments: []string{"e", "e10"}}, false, "environments lists none of the event's: e1, e2",
		},
		"cluster":       {Filter{Clusters: []string{"production"}}, true, "topics is empty"},
		"other cluster": {Filter{Clusters: []string{"Production"}}, false, "clusters lists none"},
		"no container": {
			Filter{Containers: []string{"c1"}}, false, "containers is a list, and the event has none",
		},
		"when": {
			Filter{Topics: errorsOnly, When: constantCondition(true, nil)}, true, `topics has "*.error"; when is true`,
		},
		"when not":   {Filter{When: constantCondition(false, nil)}, false, "when is false"},
		"when fails": {Filter{When: constantCondition(false, errors.New("oh"))}, true, "when failed (oh)"},
		"list before when": {
			Filter{Containers: []string{"c1"}, When: constantCondition(true, nil)}, false, "containers",
		},
	} {
		got := tc.filter.Match(n)
		explained, reason := tc.filter.Explain(n)
		if got != tc.want || explained != tc.want || !strings.Contains(reason, tc.reason) {
			t.Errorf("%s: %v, %v because %s", name, got, explained, reason)
		}
	}
}

func TestFilter_OperationalTopics(t *testing.T) {
	n := Notification{Topic: "hubrelay.sink.disabled", Hub: "h"}
	for text, want := range map[string]bool{"*": false, "*.disabled": false, "hubrelay.*": true, "!hub.*": false} {
		f := Filter{Topics: mustPatterns(t, text)}
		explained, reason := f.Explain(n)
		if f.Match(n) != want || explained != want {
			t.Errorf("%s: %v, %s", text, explained, reason)
		}
	}
}

// A notification that cannot be decoded matches rules that need the envelope. Other rules still apply.
func TestFilter_UndecodableData(t *testing.T) {
	n := Notification{Topic: "job.error", Hub: "h1", Data: json.RawMessage(`{"context":7}`)}
	f := Filter{Containers: []string{"c"}, When: constantCondition(false, nil)}
	explained, reason := f.Explain(n)
	if !f.Match(n) || !explained || !strings.Contains(reason, "cannot be decoded") {
		t.Error(explained, reason)
	}
	f.Hubs = []string{"other"}
	if explained, _ := f.Explain(n); f.Match(n) || explained {
		t.Error("the filter ignored the hub")
	}
	if f := (Filter{}); f.NeedsEnvelope() || !f.Match(n) {
		t.Error("an empty filter needs the envelope")
	}
}
