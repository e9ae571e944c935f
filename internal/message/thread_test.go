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
			ID: "6740a1b20000000000000001", Topic: topic, Hub: "h", Account: "a",
			Data: fmt.Appendf(nil, `{"topic":%q,"object":{"id":%q},"context":{"hub_id":"h","containers":[%s]}%s}`,
				topic, object, containers, more),
		}}}
	}
	digest := of("container.error", "o", `"c"`, "")
	digest.Digest = &relay.Digest{Count: 1}
	batch := of("container.error", "o", `"c"`, "")
	batch.Notifications = append(batch.Notifications, batch.Notifications...)
	broken := of("container.error", "o", `"c"`, ",")
	// The Slack sink stores threads with these keys, and the email sink derives references from them.
	container, job := Thread{ThreadContainer, "container/h/a/c"}, Thread{ThreadJob, "job/h/a/j"}
	for name, c := range map[string]struct {
		of   relay.Delivery
		want Thread
	}{
		"container":            {of("container.error", "o", `"c"`, ""), container},
		"instance":             {of("container.instance.error", "i", `"c"`, ""), container},
		"job":                  {of("job.state.changed", "j", `"c"`, ""), job},
		"job without ID":       {of("job.state.changed", "", `"c"`, ""), container},
		"no container":         {of("billing.invoice.new", "o", "", ""), Thread{}},
		"container without ID": {of("container.error", "o", `""`, ""), Thread{}},
		"several containers":   {of("container.error", "o", `"c","d"`, ""), Thread{}},
		"sample":               {of("container.error", "o", `"c"`, `,"sample":true`), Thread{}},
		"digest":               {digest, Thread{}},
		"batch":                {batch, Thread{}},
		"invalid JSON":         {broken, Thread{}},
		"no event":             {relay.Delivery{ID: "d"}, Thread{}},
	} {
		if got := ThreadOf(c.of); got != c.want {
			t.Errorf("%s: ThreadOf() = %+v, want %+v", name, got, c.want)
		}
	}
}

// No hub and no account can get the key of another one.
func TestSubjectKey_SeparatesHubsAndAccounts(t *testing.T) {
	t.Parallel()
	of := func(hub, account, id string) string {
		return SubjectKey(relay.Notification{Hub: hub, Account: account}, "container", id)
	}
	seen := make(map[string]bool)
	for _, key := range []string{
		of("h", "", "x"), of("h", "a", "x"), of("h", "b", "x"), of("h", "", "a/x"), of("h/a", "", "x"), of("h", "a/x", ""),
		of("h", "a%2Fx", ""), of("h a", "", "x"), of("h", "a x", ""), of("", "h", "x"),
	} {
		if seen[key] {
			t.Errorf("several subjects have the key %s", key)
		}
		seen[key] = true
	}
}
