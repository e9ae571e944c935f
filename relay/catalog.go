package relay

import (
	"fmt"
	"slices"
	"strings"
)

// OperationalPrefix begins the topics of hubrelay's own notifications. They reach only sinks that name them by a
// pattern beginning with it, and nobody else may publish them.
const OperationalPrefix = "hubrelay."

// maxName bounds topic names and patterns, in bytes.
const maxName = 256

// Catalog is the set of topics that a relay accepts: the 93 of [Topics] and those an operator adds. It does not change
// once built and may be used concurrently.
type Catalog struct {
	names  []string
	byName map[string]string
}

// NewCatalog returns the catalog of the 93 topics and extra. A name that is there already is no error. A name is
// refused where it is empty, longer than 256 bytes, has a character outside [a-z0-9_.-] or begins with "hubrelay.".
func NewCatalog(extra []string) (*Catalog, error) {
	topics := Topics()
	c := &Catalog{byName: make(map[string]string, len(topics)+len(extra))}
	for _, t := range topics {
		c.add(t.Name)
	}
	for _, name := range extra {
		if err := checkTopicName(name); err != nil {
			return nil, err
		}
		c.add(name)
	}
	return c, nil
}

func (c *Catalog) add(name string) {
	if _, ok := c.byName[name]; ok {
		return
	}
	c.byName[name] = name
	c.names = append(c.names, name)
}

func checkTopicName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("a topic name is empty; leave it out or give it a name such as container.created")
	case len(name) > maxName:
		return fmt.Errorf("topic %q is longer than %d bytes", Truncate(name, 40), maxName)
	case strings.HasPrefix(name, OperationalPrefix):
		return fmt.Errorf("topic %q begins with %q, which is kept for the relay's own notifications", name, OperationalPrefix)
	}
	for _, r := range name {
		if !isTopicRune(r) {
			return fmt.Errorf("topic %q has the character %q; use a-z, 0-9, dot, underscore and hyphen", name, r)
		}
	}
	return nil
}

func isTopicRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-'
}

// Contains reports whether topic is in the catalog. Operational topics are not.
func (c *Catalog) Contains(topic string) bool {
	_, ok := c.byName[topic]
	return ok
}

// Lookup is Known for bytes: it returns the catalog's own string, so that a decoder need not make one.
func (c *Catalog) Lookup(topic []byte) (string, bool) {
	name, ok := c.byName[string(topic)]
	return name, ok
}

// Names returns all topics, the 93 first, then the extra ones in the order they were given. The slice is the caller's.
func (c *Catalog) Names() []string { return slices.Clone(c.names) }

// DescribeUnknown says that there is no such topic, and which may have been meant, for everybody who names one. Nearest is that
// topic, or empty.
func (c *Catalog) DescribeUnknown(topic string) (text, nearest string) {
	text = fmt.Sprintf("there is no topic %q", Truncate(topic, 80))
	if strings.HasPrefix(topic, OperationalPrefix) {
		return text + fmt.Sprintf(" to publish: those that begin with %q are the relay's own", OperationalPrefix), ""
	}
	nearest = c.Suggest(topic)
	return text + topicSuggestion(nearest), nearest
}

// topicSuggestion is what an error about a topic or a pattern ends with.
func topicSuggestion(name string) string {
	if name == "" {
		return `; "hubrelay topics" lists all`
	}
	return "; the nearest topic is " + name
}

// Suggest returns the known topic that topic was most likely meant to be, or "" when none is near. Its cost is bounded
// whatever topic is.
func (c *Catalog) Suggest(topic string) string { return ClosestName(topic, c.names) }

// Truncate shortens s to at most limit bytes for showing it in a message, marking the cut and keeping characters whole.
func Truncate(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && s[limit]&0xC0 == 0x80 {
		limit--
	}
	return s[:limit] + "…"
}
