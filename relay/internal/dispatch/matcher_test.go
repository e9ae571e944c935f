package dispatch

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

func patterns(t testing.TB, list ...string) relay.Patterns {
	t.Helper()
	p, err := relay.ParsePatterns(list)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The index finds the same sinks as the filters.
func TestMatch_AgreesWithFilters(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	pick := func(all ...string) []string {
		var out []string
		for _, s := range all {
			if rng.IntN(3) == 0 {
				out = append(out, s, s)
			}
		}
		return out
	}
	var sinks []Sink
	for i := range 200 {
		sinks = append(sinks, Sink{Name: fmt.Sprint("s", i), Filter: relay.Filter{
			Topics: patterns(t, pick("*.error", "container.*", "!container.instance.*", "hubrelay.*", "*")...),
			Hubs:   pick("h1", "h2", "h3"), Accounts: pick("a1", "a2", ""),
			Environments: pick("e1", "e2", "e3"), Clusters: pick("c1"), Containers: pick("x"),
			When: randomCondition(rng),
		}})
	}
	m := NewMatcher(sinks)
	var got []int
	for _, topic := range []string{
		"container.error", "container.instance.error", "image.error", "hub.updated", "hubrelay.sink.disabled",
	} {
		for _, hub := range []string{"h1", "h2", "h9"} {
			for _, account := range []string{"", "a1", "a9"} {
				data := newData(pick("e1", "e2"), pick("c1"), pick("x"))
				n := relay.Notification{Topic: topic, Hub: hub, Account: account, Data: data}
				var want []int
				for i, s := range sinks {
					if s.Filter.Match(n) {
						want = append(want, i)
					}
				}
				if got = m.Match(&n, got[:0]); !slices.Equal(got, want) {
					t.Errorf("topic %s, hub %s, account %s: got sinks %v, want %v", topic, hub, account, got, want)
				}
			}
		}
	}
}

// randomCondition returns a condition or nil.
func randomCondition(rng *rand.Rand) relay.Condition {
	switch rng.IntN(6) {
	case 0:
		return func(e *relay.Envelope) (bool, error) { return len(e.Context.Environments) > 1, nil }
	case 1:
		return func(*relay.Envelope) (bool, error) { return false, errors.New("no answer") }
	}
	return nil
}

// newData returns the data of a notification.
func newData(environments, clusters, containers []string) []byte {
	data, err := json.Marshal(relay.Envelope{Context: relay.Context{
		Environments: environments, Clusters: clusters, Containers: containers,
	}})
	if err != nil {
		panic(err)
	}
	return data
}

func TestMatch_ChecksEnvelopesOfCandidates(t *testing.T) {
	t.Parallel()
	asked := 0
	when := func(*relay.Envelope) (bool, error) { asked++; return true, nil }
	m := NewMatcher([]Sink{
		{Name: "topic", Filter: relay.Filter{Topics: patterns(t, "job.*"), When: when}},
		{Name: "hub", Filter: relay.Filter{Hubs: []string{"h9"}, When: when}},
		{Name: "all"},
		{Name: "containers", Filter: relay.Filter{Containers: []string{"x"}}},
	})
	n := relay.Notification{Topic: "image.error", Hub: "h", Data: newData(nil, nil, []string{"x"})}
	if got := m.Match(&n, nil); !slices.Equal(got, []int{2, 3}) || asked != 0 {
		t.Errorf("%v after %d questions", got, asked)
	}
	n.Data = newData(nil, nil, []string{"y"})
	if got := m.Match(&n, []int{3}); !slices.Equal(got, []int{3, 2}) {
		t.Errorf("%v", got)
	}
	n.Data = []byte("what cannot be decoded goes to all")
	if got := m.Match(&n, nil); !slices.Equal(got, []int{2, 3}) {
		t.Errorf("%v", got)
	}
}

func TestMatch_Appends(t *testing.T) {
	t.Parallel()
	m := NewMatcher([]Sink{{Name: "a"}, {Name: "b", Filter: relay.Filter{Hubs: []string{"h"}}}})
	got := m.Match(&relay.Notification{Topic: "x", Hub: "h"}, []int{7})
	if !slices.Equal(got, []int{7, 0, 1}) {
		t.Errorf("%v", got)
	}
}

func TestMatch_BeyondMaxTopics(t *testing.T) {
	t.Parallel()
	m := NewMatcher([]Sink{{Name: "a"}})
	for i := range maxTopics + 10 {
		if got := m.Match(&relay.Notification{Topic: fmt.Sprint("t", i)}, nil); len(got) != 1 {
			t.Fatal(got)
		}
	}
	if len(m.topics) != maxTopics {
		t.Errorf("%d topics in memory", len(m.topics))
	}
}

func ExampleMatcher_Match() {
	errors, _ := relay.ParsePatterns([]string{"*.error"})
	m := NewMatcher([]Sink{{Name: "all"}, {Name: "errors", Filter: relay.Filter{Topics: errors}}})
	for _, i := range m.Match(&relay.Notification{Topic: "container.error", Hub: "h1"}, nil) {
		fmt.Println(m.Sinks()[i].Name)
	}
	// Output:
	// all
	// errors
}

// BenchmarkMatch has one matching sink. The others have another topic, or the same topic and another hub.
func BenchmarkMatch(b *testing.B) {
	for _, others := range []int{0, 100, 1000, 10_000} {
		for _, kind := range []string{"topic", "hub"} {
			sinks := []Sink{{Name: "one", Filter: relay.Filter{Topics: patterns(b, "container.*")}}}
			for i := range others {
				f := relay.Filter{Topics: patterns(b, "billing.*")}
				if kind == "hub" {
					f = relay.Filter{Topics: patterns(b, "container.*"), Hubs: []string{fmt.Sprint("hub", i)}}
				}
				sinks = append(sinks, Sink{Name: fmt.Sprint("s", i), Filter: f})
			}
			m := NewMatcher(sinks)
			n := relay.Notification{Topic: "container.created", Hub: "h", Account: "a"}
			b.Run(fmt.Sprintf("others=%d/%s", others, kind), func(b *testing.B) {
				var dst []int
				b.ReportAllocs()
				for b.Loop() {
					dst = m.Match(&n, dst[:0])
				}
				if len(dst) != 1 {
					b.Fatal(dst)
				}
			})
		}
	}
}

// BenchmarkMatchEnvelope has sinks whose filters need the envelope, and one that matches.
func BenchmarkMatchEnvelope(b *testing.B) {
	n := relay.Notification{Topic: "container.created", Hub: "h", Account: "a", Data: newData(
		[]string{"0123456789abcdef01234567"}, []string{"production"},
		[]string{"123456789abcdef012345678", "23456789abcdef0123456789"},
	)}
	for _, others := range []int{0, 1, 10, 100, 1000} {
		sinks := []Sink{{Name: "one", Filter: relay.Filter{Topics: patterns(b, "container.*")}}}
		for i := range others {
			filter := relay.Filter{Containers: []string{fmt.Sprint("c", i)}}
			sinks = append(sinks, Sink{Name: fmt.Sprint("s", i), Filter: filter})
		}
		m := NewMatcher(sinks)
		b.Run(fmt.Sprintf("others=%d", others), func(b *testing.B) {
			var dst []int
			b.ReportAllocs()
			for b.Loop() {
				dst = m.Match(&n, dst[:0])
			}
			if len(dst) != 1 {
				b.Fatal(dst)
			}
		})
	}
}
