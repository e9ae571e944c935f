package dispatch

import (
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

// The index finds what asking every sink's filter finds.
func TestMatchIsWhatFiltersSay(t *testing.T) {
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
		}})
	}
	m := NewMatcher(sinks)
	var got []int
	for _, topic := range []string{"container.error", "container.instance.error", "image.error", "hub.updated", "hubrelay.sink.disabled"} {
		for _, hub := range []string{"h1", "h2", "h9"} {
			for _, account := range []string{"", "a1", "a9"} {
				n := relay.Notification{Topic: topic, Hub: hub, Account: account}
				var want []int
				for i, s := range sinks {
					if s.Filter.Match(n) {
						want = append(want, i)
					}
				}
				if got = m.Match(&n, got[:0]); !slices.Equal(got, want) {
					t.Errorf("%s %s %s: %v, want %v", topic, hub, account, got, want)
				}
			}
		}
	}
}

func TestMatchAppends(t *testing.T) {
	m := NewMatcher([]Sink{{Name: "a"}, {Name: "b", Filter: relay.Filter{Hubs: []string{"h"}}}})
	got := m.Match(&relay.Notification{Topic: "x", Hub: "h"}, []int{7})
	if !slices.Equal(got, []int{7, 0, 1}) {
		t.Errorf("%v", got)
	}
}

func TestMatcherForgetsNothingBeyondItsBound(t *testing.T) {
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

// BenchmarkMatch: one sink matches; the others differ by topic, or want the topic of other hubs.
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
