package relay

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hubrelay/hubrelay/internal/suggest"
)

// PatternError reports an invalid topic pattern of a list.
type PatternError struct {
	// Index is the index of the pattern in the list, from 0.
	Index   int
	Pattern string
	// Problem is a phrase that follows the pattern.
	Problem string
	// Nearest is the topic that was probably meant, or empty.
	Nearest string
}

func (e *PatternError) Error() string {
	s := fmt.Sprintf("topic pattern %q %s", Truncate(e.Pattern, 80), e.Problem)
	if e.Nearest != "" {
		s += topicSuggestion(e.Nearest)
	}
	return s
}

// Patterns selects topics. A topic matches if at least one pattern matches it and no pattern with a leading "!"
// does. A list of exclusions alone starts from everything, and the zero value matches everything. "*" matches any
// run of characters, dots included. The relay's own topics ("hubrelay.…") match only a pattern that starts with
// "hubrelay.". Patterns is immutable and may be used concurrently.
type Patterns struct {
	source  []string
	include []pattern
	exclude []pattern
}

// ParsePatterns parses a list of patterns. Their order does not matter. It returns a [*PatternError] for a pattern
// that is empty, longer than 256 bytes, or contains a character outside [a-z0-9_.*-] after the optional "!".
func ParsePatterns(list []string) (Patterns, error) {
	var p Patterns
	for i, text := range list {
		body, excluded := strings.CutPrefix(text, "!")
		if problem := patternProblem(text, body); problem != "" {
			return Patterns{}, &PatternError{Index: i, Pattern: text, Problem: problem}
		}
		p.source = append(p.source, text)
		if excluded {
			p.exclude = append(p.exclude, newPattern(body))
		} else {
			p.include = append(p.include, newPattern(body))
		}
	}
	return p, nil
}

func patternProblem(text, body string) string {
	if text == "" {
		return "is empty; leave it out, or write * for every topic"
	}
	if body == "" {
		return "excludes nothing; write the topic after the !"
	}
	if len(text) > maxName {
		return fmt.Sprintf("is longer than %d bytes", maxName)
	}
	for _, r := range body {
		if r != '*' && !isTopicRune(r) {
			return fmt.Sprintf("has the character %q; use a-z, 0-9, dot, underscore, hyphen, * and a leading !", r)
		}
	}
	return ""
}

// Match reports whether topic matches. The time per pattern is linear in the length of topic. The stream's own
// messages ([TopicResync], [TopicCursor]) never match.
func (p Patterns) Match(topic string) bool {
	if topic == TopicResync || topic == TopicCursor {
		return false
	}
	return p.matchesIncludes(topic) && !matchAny(p.exclude, topic, false)
}

// Explain returns the result of [Patterns.Match] and the pattern that decided it.
func (p Patterns) Explain(topic string) (passes bool, reason string) {
	operational, shown := strings.HasPrefix(topic, OperationalPrefix), Truncate(topic, maxName)
	for i := range p.exclude {
		if p.exclude[i].match(topic) {
			return false, fmt.Sprintf("topics excludes %s by %q", shown, "!"+p.exclude[i].text)
		}
	}
	for i := range p.include {
		if (!operational || p.include[i].operational) && p.include[i].match(topic) {
			return true, fmt.Sprintf("topics has %q", p.include[i].text)
		}
	}
	switch {
	case operational:
		return false, fmt.Sprintf("topics has no pattern that begins with %q and matches %s", OperationalPrefix, shown)
	case len(p.include) > 0:
		return false, fmt.Sprintf("topics has no pattern that matches %s: %s", shown, Truncate(p.String(), 200))
	case len(p.exclude) > 0:
		return true, "topics excludes only others"
	}
	return true, "topics is empty, which is all"
}

func (p Patterns) matchesIncludes(topic string) bool {
	operational := strings.HasPrefix(topic, OperationalPrefix)
	if len(p.include) == 0 {
		return !operational
	}
	return matchAny(p.include, topic, operational)
}

func matchAny(list []pattern, topic string, operationalOnly bool) bool {
	for i := range list {
		if (!operationalOnly || list[i].operational) && list[i].match(topic) {
			return true
		}
	}
	return false
}

// String returns the patterns joined by commas, or "*" for an empty list.
func (p Patterns) String() string {
	if len(p.source) == 0 {
		return "*"
	}
	return strings.Join(p.source, ",")
}

// CheckPatterns returns the errors of [ParsePatterns]. It also rejects a pattern or an exclusion that matches
// neither a topic of the catalog nor one of [OperationalTopics], because that is probably a typing error.
func (c *Catalog) CheckPatterns(list []string) error {
	if _, err := ParsePatterns(list); err != nil {
		return err
	}
	for i, text := range list {
		body := strings.TrimPrefix(text, "!")
		p, operational := newPattern(body), operationalNames()
		if c.matchesAny(p) || p.operational && slices.ContainsFunc(operational, p.match) {
			continue
		}
		bad := &PatternError{
			Index: i, Pattern: text, Problem: "matches no topic",
			Nearest: suggest.Closest(body, append(operational, c.names...), patternDistance),
		}
		if bad.Nearest == "" {
			bad.Problem += topicSuggestion("")
		}
		return bad
	}
	return nil
}

func (c *Catalog) matchesAny(p pattern) bool {
	if p.literal {
		return c.Contains(p.head)
	}
	for _, name := range c.names {
		if p.match(name) {
			return true
		}
	}
	return false
}

// pattern is a pattern split at its stars: head*middle*…*tail. The split makes a match a few comparisons.
type pattern struct {
	text        string
	literal     bool
	operational bool
	head, tail  string
	middle      []string
}

func newPattern(text string) pattern {
	p := pattern{text: text, operational: strings.HasPrefix(text, OperationalPrefix)}
	parts := strings.Split(text, "*")
	p.head = parts[0]
	if len(parts) == 1 {
		p.literal = true
		return p
	}
	p.tail = parts[len(parts)-1]
	for _, m := range parts[1 : len(parts)-1] {
		if m != "" {
			p.middle = append(p.middle, m)
		}
	}
	return p
}

// match finds each middle part at its first position. This is sufficient because "*" matches everything, so
// backtracking is never needed.
func (p *pattern) match(topic string) bool {
	if p.literal {
		return topic == p.head
	}
	if len(topic) < len(p.head)+len(p.tail) || !strings.HasPrefix(topic, p.head) || !strings.HasSuffix(topic, p.tail) {
		return false
	}
	topic = topic[len(p.head) : len(topic)-len(p.tail)]
	for _, m := range p.middle {
		i := strings.Index(topic, m)
		if i < 0 {
			return false
		}
		topic = topic[i+len(m):]
	}
	return true
}

// patternDistance returns the number of edits after which pattern matches name. A "*" matches any run of bytes
// without cost.
func patternDistance(pattern, name []byte) int {
	prev := make([]int, len(name)+1)
	row := make([]int, len(name)+1)
	for j := range prev {
		prev[j] = j
	}
	for _, c := range pattern {
		if c == '*' {
			copy(row, prev)
			for j := 1; j <= len(name); j++ {
				row[j] = min(row[j], row[j-1])
			}
		} else {
			row[0] = prev[0] + 1
			for j := 1; j <= len(name); j++ {
				cost := 1
				if c == name[j-1] {
					cost = 0
				}
				row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			}
		}
		prev, row = row, prev
	}
	return prev[len(name)]
}
