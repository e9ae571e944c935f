package demo

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/hubrelay/hubrelay/internal/samples"
	"github.com/hubrelay/hubrelay/relay"
)

// generator creates notifications of a small platform with a few containers, servers and zones. It uses each topic of
// the catalog in turn. It is not safe for concurrent use.
type generator struct {
	rand    *rand.Rand
	hub     string
	account string
	topics  []string
	next    int
}

func newGenerator(seed uint64, hub, account string) *generator {
	s := &generator{rand: rand.New(rand.NewPCG(seed, seed)), hub: hub, account: account}
	for _, t := range relay.Topics() {
		s.topics = append(s.topics, t.Name)
	}
	s.shuffleTopics()
	return s
}

func (g *generator) shuffleTopics() {
	g.rand.Shuffle(len(g.topics), func(i, j int) { g.topics[i], g.topics[j] = g.topics[j], g.topics[i] })
}

// Event is a notification as a producer writes it.
type Event struct {
	Topic   string       `json:"topic"`
	Object  eventObject  `json:"object"`
	Context eventContext `json:"context"`
}

type eventObject struct {
	ID    string `json:"id"`
	State string `json:"state"`
	Error string `json:"error"`
}

type eventContext struct {
	HubID        string   `json:"hub_id"`
	AccountID    string   `json:"account_id,omitempty"`
	Environments []string `json:"environments,omitempty"`
	DNSZones     []string `json:"dns_zones,omitempty"`
	Clusters     []string `json:"clusters,omitempty"`
	Containers   []string `json:"containers,omitempty"`
}

// nextEvent returns an event with the next topic.
func (g *generator) nextEvent() Event {
	if g.next == len(g.topics) {
		g.next = 0
		g.shuffleTopics()
	}
	topic := g.topics[g.next]
	g.next++
	return g.eventFor(topic)
}

func (g *generator) eventFor(topic string) Event {
	family, _, _ := strings.Cut(topic, ".")
	out := Event{
		Topic:   topic,
		Object:  eventObject{ID: g.pickID(family)},
		Context: eventContext{HubID: g.hub, AccountID: g.account},
	}
	if states := samples.StatesFor(topic); len(states) > 0 {
		out.Object.State = g.pickOne(states...)
	}
	if strings.HasSuffix(topic, ".error") {
		out.Object.Error = g.pickOne("no space left on device", "health check timed out", "image not found",
			"connection refused")
	}
	related := samples.RelatedIDsFor(topic)
	if related.Environments {
		out.Context.Environments = []string{g.pickID("environment")}
	}
	if related.Clusters {
		out.Context.Clusters = []string{g.pickOne("production", "staging")}
	}
	if related.Zones {
		out.Context.DNSZones = []string{g.pickID("zone")}
	}
	if related.Containers {
		out.Context.Containers = []string{g.pickID("container")}
	}
	return out
}

// pickID returns one of four ids of a kind, so the same objects occur repeatedly.
func (g *generator) pickID(kind string) string {
	var sum uint64 = 14695981039346656037
	for _, c := range []byte(kind) {
		sum = (sum ^ uint64(c)) * 1099511628211
	}
	return fmt.Sprintf("%016x%08x", sum, 1+g.rand.IntN(4))
}

func (g *generator) pickOne(choices ...string) string { return choices[g.rand.IntN(len(choices))] }
