package message

import (
	"fmt"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

func TestThreadOf(t *testing.T) {
	t.Parallel()
	of := func(topic, object, containers, more string) relay.Delivery {
		return relay.Delivery{ID: "d", Notifications: []relay.Notification{{
			ID: "6740a1b20000000000000001", Topic: topic, Hub: "h",
			Data: fmt.Appendf(nil, `{"topic":%q,"object":{"id":%q},"context":{"hub_id":"h","containers":[%s]}%s}`, topic, object, containers, more),
		}}}
	}
	gathered := of("container.error", "o", `"c"`, "")
	gathered.Digest = &relay.Digest{Count: 1}
	batch := of("container.error", "o", `"c"`, "")
	batch.Notifications = append(batch.Notifications, batch.Notifications...)
	broken := of("container.error", "o", `"c"`, ",")
	// Slack's threads are stored under these keys, and the references of mails follow from them.
	container, job := Thread{ThreadContainer, "container h c"}, Thread{ThreadJob, "job h j"}
	for name, c := range map[string]struct {
		of   relay.Delivery
		want Thread
	}{
		"a container":          {of("container.error", "o", `"c"`, ""), container},
		"its instance":         {of("container.instance.error", "i", `"c"`, ""), container},
		"a job":                {of("job.state.changed", "j", `"c"`, ""), job},
		"a job without an id":  {of("job.state.changed", "", `"c"`, ""), container},
		"no container":         {of("billing.invoice.new", "o", "", ""), Thread{}},
		"a container of no id": {of("container.error", "o", `""`, ""), Thread{}},
		"several containers":   {of("container.error", "o", `"c","d"`, ""), Thread{}},
		"a sample":             {of("container.error", "o", `"c"`, `,"sample":true`), Thread{}},
		"a digest":             {gathered, Thread{}},
		"a batch":              {batch, Thread{}},
		"what is no JSON":      {broken, Thread{}},
		"nothing":              {relay.Delivery{ID: "d"}, Thread{}},
	} {
		if got := ThreadOf(c.of); got != c.want {
			t.Errorf("%s is in %+v, want %+v", name, got, c.want)
		}
	}
}
