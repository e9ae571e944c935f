package message

import (
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

// The kinds of threads.
const (
	ThreadContainer = "container"
	ThreadJob       = "job"
)

// Thread identifies the messages about one container or one job. The zero Thread means that a message has no thread.
type Thread struct {
	// Kind is [ThreadContainer] or [ThreadJob].
	Kind string
	// Key is unique for each thread. It may contain any text of a producer.
	Key string
}

var separatorEscaper = strings.NewReplacer("%", "%25", "/", "%2F")

// SubjectKey returns a key for the subject of a notification, such as a container. The key contains the hub and the account, so
// an event of one account cannot change alerts and messages about the containers of another account. kind must not contain
// a slash.
func SubjectKey(n relay.Notification, kind, id string) string {
	escape := separatorEscaper.Replace
	return kind + "/" + escape(n.Hub) + "/" + escape(n.Account) + "/" + escape(id)
}

// ThreadOf returns the thread of a delivery. Digests, batches, samples, jobs without an ID, and notifications about no
// container or several containers have no thread.
func ThreadOf(d relay.Delivery) Thread {
	if d.Digest != nil || len(d.Notifications) != 1 || d.Notifications[0].IsSample() {
		return Thread{}
	}
	n := d.Notifications[0]
	e, err := n.Envelope()
	if err != nil {
		return Thread{}
	}
	switch {
	case strings.HasPrefix(n.Topic, "job.") && e.Object.ID != "":
		return Thread{ThreadJob, SubjectKey(n, ThreadJob, e.Object.ID)}
	case len(e.Context.Containers) == 1 && e.Context.Containers[0] != "":
		return Thread{ThreadContainer, SubjectKey(n, ThreadContainer, e.Context.Containers[0])}
	}
	return Thread{}
}
