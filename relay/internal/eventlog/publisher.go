package eventlog

import (
	"strings"

	"github.com/hubrelay/hubrelay/relay/internal/resp"
)

// The kinds of publishers.
const (
	PublishedByKey    = "key"
	PublishedBySource = "source"
	PublishedByInbox  = "inbox"
	PublishedByRelay  = "relay"
)

// Publisher is who published a notification. The zero value is unknown: an older version, or another program, wrote the
// entry.
type Publisher struct {
	// Kind is one of the constants above.
	Kind string
	// Name is the name of the API key or of the source. It is empty for other kinds.
	Name string
}

// String returns the text in the log, such as "key ops".
func (p Publisher) String() string {
	if p.Name == "" {
		return p.Kind
	}
	return p.Kind + " " + p.Name
}

// publisherOf returns the publisher of a log entry.
func publisherOf(e resp.Entry) (p Publisher) {
	resp.EachField(e.Body, func(key, value []byte) bool {
		if string(key) == "publisher" {
			p.Kind, p.Name, _ = strings.Cut(string(value), " ")
		}
		return true
	})
	return p
}
