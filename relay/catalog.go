package relay

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hubrelay/hubrelay/internal/suggest"
)

// OperationalPrefix is the prefix of the relay's own topics. Sinks receive them only through a pattern with this
// prefix, and producers cannot publish them.
const OperationalPrefix = "hubrelay."

// maxName is the maximum length of topic names and patterns, in bytes.
const maxName = 256

// Catalog is the set of topics that a relay accepts: the 93 of [Topics] and the operator's extra topics. It is
// immutable and may be used concurrently.
type Catalog struct {
	names  []string
	byName map[string]string
}

// NewCatalog returns a catalog of the 93 topics and extra. Duplicates are ignored. A name is rejected if it is
// empty, longer than 256 bytes, starts with "hubrelay." or contains a character outside [a-z0-9_.-].
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
		return fmt.Errorf("topic %q begins with %q, which is reserved for the relay's own events", name,
			OperationalPrefix)
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

// Lookup returns the catalog's string for topic, so a decoder allocates none.
func (c *Catalog) Lookup(topic []byte) (string, bool) {
	name, ok := c.byName[string(topic)]
	return name, ok
}

// Names returns all topics: the 93 first, then the extra topics in their order. The caller owns the slice.
func (c *Catalog) Names() []string { return slices.Clone(c.names) }

// DescribeUnknown returns an error text for a topic that does not exist, and the topic that was probably meant, or
// "".
func (c *Catalog) DescribeUnknown(topic string) (text, nearest string) {
	text = fmt.Sprintf("there is no topic %q", Truncate(topic, 80))
	if strings.HasPrefix(topic, OperationalPrefix) {
		return text + fmt.Sprintf(" to publish: topics that start with %q are reserved for the relay",
			OperationalPrefix), ""
	}
	nearest = c.Suggest(topic)
	return text + topicSuggestion(nearest), nearest
}

// topicSuggestion returns the end of an error text about an unknown topic or pattern.
func topicSuggestion(name string) string {
	if name == "" {
		return "; 'hubrelay topics' lists all"
	}
	return "; the nearest topic is " + name
}

// Suggest returns the topic that most likely was meant by topic, or "" if none is close. The cost is bounded for
// every input.
func (c *Catalog) Suggest(topic string) string { return suggest.ClosestName(topic, c.names) }

// Truncate shortens s to at most limit bytes for a message. It appends "…" if it cuts, and keeps characters
// intact.
func Truncate(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && s[limit]&0xC0 == 0x80 {
		limit--
	}
	return s[:limit] + "…"
}
