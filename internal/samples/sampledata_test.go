package samples

import (
	"slices"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

func TestForTopic(t *testing.T) {
	catalog, err := relay.NewCatalog(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range catalog.Names() {
		n := ForTopic(topic)
		e, err := n.Envelope()
		if err != nil || e.Topic != topic || n.Hub != e.Context.HubID || n.IsSample() || !n.StoredAt().Equal(Stored()) {
			t.Errorf("%s: %+v, %v", topic, n, err)
		}
		if has := len(e.Context.Containers) > 0; has != RelatedIDsFor(topic).Containers {
			t.Errorf("%s: got containers %v, want %v", topic, has, !has)
		}
	}
	for _, own := range relay.OperationalTopics() {
		if e, err := ForTopic(own.Name).Envelope(); err != nil || e.Object.State == "" {
			t.Errorf("%s: %+v, %v", own.Name, e, err)
		}
	}
}

func TestDigest(t *testing.T) {
	for _, topics := range [][]string{{"job.created"}, {"job.created", "container.error"}, topicNames()} {
		d := Digest(topics)
		if len(d.Notifications) != 3 || d.Digest.Count != 5 {
			t.Errorf("%+v", d.Digest)
		}
		if _, err := d.Payload(); err != nil {
			t.Error(err)
		}
		if data, err := Batch(topics).Payload(); err != nil || data[0] != '[' {
			t.Errorf("%s, %v", data, err)
		}
	}
	list := Deliveries(topicNames())
	isJobCreated := func(d relay.Delivery) bool { return d.Notifications[0].Topic == "job.created" }
	if len(list) != len(topicNames()) || !slices.ContainsFunc(list, isJobCreated) {
		t.Error("Deliveries() lacks topics")
	}
}

func topicNames() []string {
	var names []string
	for _, topic := range relay.Topics() {
		names = append(names, topic.Name)
	}
	return names
}
