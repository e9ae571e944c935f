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

func (s *generator) shuffleTopics() {
	s.rand.Shuffle(len(s.topics), func(i, j int) { s.topics[i], s.topics[j] = s.topics[j], s.topics[i] })
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
func (s *generator) nextEvent() Event {
	if s.next == len(s.topics) {
		s.next = 0
		s.shuffleTopics()
	}
	topic := s.topics[s.next]
	s.next++
	return s.eventFor(topic)
}

func (s *generator) eventFor(topic string) Event {
	family, _, _ := strings.Cut(topic, ".")
	out := Event{
		Topic:   topic,
		Object:  eventObject{ID: s.pickID(family)},
		Context: eventContext{HubID: s.hub, AccountID: s.account},
	}
	if states := samples.StatesFor(topic); len(states) > 0 {
		out.Object.State = s.pickOne(states...)
	}
	if strings.HasSuffix(topic, ".error") {
		out.Object.Error = s.pickOne("no space left on device", "health check timed out", "image not found",
			"connection refused")
	}
	related := samples.RelatedIDsFor(topic)
	if related.Environments {
		out.Context.Environments = []string{s.pickID("environment")}
	}
	if related.Clusters {
		out.Context.Clusters = []string{s.pickOne("production", "staging")}
	}
	if related.Zones {
		out.Context.DNSZones = []string{s.pickID("zone")}
	}
	if related.Containers {
		out.Context.Containers = []string{s.pickID("container")}
	}
	return out
}

// pickID returns one of four ids of a kind, so the same objects occur repeatedly.
func (s *generator) pickID(kind string) string {
	var sum uint64 = 14695981039346656037
	for _, c := range []byte(kind) {
		sum = (sum ^ uint64(c)) * 1099511628211
	}
	return fmt.Sprintf("%016x%08x", sum, 1+s.rand.IntN(4))
}

func (s *generator) pickOne(choices ...string) string { return choices[s.rand.IntN(len(choices))] }
