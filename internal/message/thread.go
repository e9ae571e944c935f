package message

import (
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

// What a thread is of.
const (
	ThreadContainer = "container"
	ThreadJob       = "job"
)

// Thread is one container or one job, whose messages belong together. The zero Thread is of a message that stands alone.
type Thread struct {
	// Kind is [ThreadContainer] or [ThreadJob].
	Kind string
	// Key is the same for all messages of a thread, and in no other; it may hold anything that a producer wrote.
	Key string
}

// ThreadOf returns the thread of a delivery. What is gathered, a sample, and what concerns no or several containers stands
// alone; so does a job that has no id.
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
		return Thread{ThreadJob, ThreadJob + " " + n.Hub + " " + e.Object.ID}
	case len(e.Context.Containers) == 1 && e.Context.Containers[0] != "":
		return Thread{ThreadContainer, ThreadContainer + " " + n.Hub + " " + e.Context.Containers[0]}
	}
	return Thread{}
}
