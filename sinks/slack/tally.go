package slack

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// tally is what a batch says of all its notifications, those that it does not list included.
type tally struct {
	count int
	// topics begins with those that are trouble by their name, then those that come most often.
	topics []topicCount
	// problems is how many are known to be trouble; more may be where some says so.
	problems int
	some     bool
	// deaths is how many dead letters the notices about them stand for, at least where not all are listed, and sink whose
	// they are where it is one's.
	deaths      int
	deathsKnown bool
	sink        string
	// by is what all have in common.
	by          map[string]string
	first, last time.Time
}

type topicCount struct {
	topic string
	count int
}

// newTally takes the numbers from d's digest, and from the events what that leaves open.
func newTally(d relay.Delivery, events []event) *tally {
	t := &tally{count: len(events)}
	listed := map[string]int{}
	for i := range events {
		listed[events[i].Topic]++
	}
	counts := listed
	if g := d.Digest; g != nil {
		t.count, t.first, t.last = max(g.Count, t.count), g.First, g.Last
		if len(g.Topics) > 0 {
			counts = g.Topics
		}
		t.by = g.By
	}
	t.countTopics(counts)
	t.countProblems(events, listed)
	t.countDeaths(events, listed[relay.TopicDeadLetterCreated])
	t.span(events)
	return t
}

func (t *tally) countTopics(counts map[string]int) {
	for topic, n := range counts {
		if n > 0 {
			t.topics = append(t.topics, topicCount{topic, n})
		}
	}
	slices.SortFunc(t.topics, func(a, b topicCount) int {
		return cmp.Or(cmp.Compare(btoi(troubled(b.topic)), btoi(troubled(a.topic))), cmp.Compare(b.count, a.count),
			strings.Compare(a.topic, b.topic))
	})
}

// countProblems knows of what is not listed only the topic, which may not tell.
func (t *tally) countProblems(events []event, listed map[string]int) {
	told := 0
	for _, c := range t.topics {
		told += c.count
		if troubled(c.topic) {
			t.problems += c.count
		} else if c.count > listed[c.topic] {
			t.some = true
		}
	}
	for i := range events {
		if events[i].severity == bad && !troubled(events[i].Topic) {
			t.problems++
		}
	}
	t.some = t.some || told < t.count
	t.problems = min(t.problems, t.count)
}

// countDeaths takes a notice that is not listed for one dead letter, which is the least.
func (t *tally) countDeaths(events []event, listed int) {
	sinks := map[string]bool{}
	for i := range events {
		if n := events[i].deaths(); n > 0 {
			t.deaths += n
			t.sink = clean(events[i].own.Sink)
			sinks[t.sink] = true
		}
	}
	all := listed
	if t.oneTopic() == relay.TopicDeadLetterCreated {
		all = t.count
	}
	for _, c := range t.topics {
		if c.topic == relay.TopicDeadLetterCreated {
			all = max(all, c.count)
		}
	}
	t.deaths += all - listed
	t.deathsKnown = all == listed
	if !t.deathsKnown || len(sinks) != 1 {
		t.sink = ""
	}
}

// died says how many dead letters there were.
func (t *tally) died() string {
	if t.deathsKnown {
		return givenUp(t.deaths)
	}
	return "at least " + givenUp(t.deaths)
}

// troubled tells whether a topic is trouble whatever its notification says.
func troubled(topic string) bool { return relay.SeverityOf(topic, relay.Object{}) == bad }

// span fills the times that no digest told.
func (t *tally) span(events []event) {
	if t.first.IsZero() || t.last.IsZero() {
		t.first, t.last = time.Time{}, time.Time{}
		for i := range events {
			at := events[i].at
			if at.IsZero() {
				continue
			}
			if t.first.IsZero() || at.Before(t.first) {
				t.first = at
			}
			if at.After(t.last) {
				t.last = at
			}
		}
	}
	if t.last.Before(t.first) {
		t.first, t.last = t.last, t.first
	}
	t.first, t.last = t.first.UTC(), t.last.UTC()
}

// header says the worst first.
func (t *tally) header(r *renderer) string {
	all := fmt.Sprintf("%d notifications", t.count)
	switch one := t.oneTopic(); {
	case one == relay.TopicDeadLetterCreated:
		text := t.died()
		if t.sink != "" {
			text += ": " + t.sink
		}
		return strings.ToUpper(text[:1]) + text[1:]
	case one != "" && (t.problems == 0 || t.problems == t.count):
		return fmt.Sprintf("%d × %s", t.count, r.meaning(one))
	case one != "":
		all = fmt.Sprintf("%d × %s", t.count, r.meaning(one))
	case t.problems == t.count:
		return fmt.Sprintf("%d problems of %d topics", t.count, len(t.topics))
	case t.problems == 0:
		return fmt.Sprintf("%s of %d topics", all, len(t.topics))
	}
	least, plural := "", "s"
	if t.some {
		least = "at least "
	}
	if t.problems == 1 {
		plural = ""
	}
	text := fmt.Sprintf("%s%d problem%s among %s", least, t.problems, plural, all)
	return strings.ToUpper(text[:1]) + text[1:]
}

// oneTopic is the topic that all share, or empty.
func (t *tally) oneTopic() string {
	if topic := t.by["topic"]; topic != "" {
		return topic
	}
	if len(t.topics) == 1 && t.topics[0].count >= t.count {
		return t.topics[0].topic
	}
	return ""
}

// summary says what all have in common, then counts the topics.
func (t *tally) summary() string {
	var common, lines []string
	add := func(name, value string) { common = append(common, name+" "+code(value, maxLineText)) }
	one := t.oneTopic()
	if one != "" {
		add("topic", one)
	}
	for _, name := range []string{"hub", "cluster"} {
		if value := t.by[name]; clean(value) != "" {
			add(name, value)
		}
	}
	if len(common) > 0 {
		lines = append(lines, "In common: "+strings.Join(common, " · "))
	}
	if one == "" {
		lines = append(lines, t.topicLines()...)
	}
	if len(lines) == 0 {
		lines = append(lines, "No topics")
	}
	return strings.Join(lines, "\n")
}

func (t *tally) topicLines() []string {
	var lines []string
	rest, others := t.count, len(t.topics)
	for _, c := range t.topics[:min(len(t.topics), maxTopics)] {
		line := fmt.Sprintf("%d × %s", c.count, code(or(c.topic, "none"), maxLineText))
		if c.topic == relay.TopicDeadLetterCreated && t.deaths > c.count {
			line += " · " + t.died()
		}
		lines = append(lines, line)
		rest -= c.count
		others--
	}
	switch {
	case others > 0:
		lines = append(lines, fmt.Sprintf("and %d of %d other topics", max(rest, others), others))
	case rest > 0:
		lines = append(lines, fmt.Sprintf("and %d of other topics", rest))
	}
	return lines
}

// foot says when, how much of it is listed, and what the relay calls it.
func (t *tally) foot(id string, shown int) string {
	var parts []string
	if at := t.when(); at != "" {
		parts = append(parts, at)
	}
	if shown < t.count {
		parts = append(parts, fmt.Sprintf("%d of %d listed", shown, t.count))
	}
	return strings.Join(append(parts, "Delivery "+code(or(id, "none"), maxLineText)), " · ")
}

func (t *tally) when() string {
	switch {
	case t.first.IsZero():
		return ""
	case clock(t.first) == clock(t.last):
		return clock(t.first)
	case t.oneDay():
		return t.first.Format("2006-01-02 15:04:05") + " to " + t.last.Format("15:04:05 UTC")
	}
	return t.first.Format("2006-01-02 15:04:05") + " to " + clock(t.last)
}

func (t *tally) oneDay() bool {
	return t.first.Format(time.DateOnly) == t.last.Format(time.DateOnly)
}

// time is when a line's notification was stored, with the day where the foot leaves it open.
func (t *tally) time(at time.Time) string {
	switch at = at.UTC(); {
	case at.IsZero():
		return ""
	case t.oneDay() && at.Format(time.DateOnly) == t.first.Format(time.DateOnly):
		return at.Format("15:04:05")
	}
	return at.Format("2 Jan 15:04:05")
}

// more counts what is not among the shown, by topic where that says something.
func (t *tally) more(events []event, shown []int) string {
	left := t.count - len(shown)
	if left <= 0 {
		return ""
	}
	text := fmt.Sprintf("*and %d more*", left)
	if t.oneTopic() != "" {
		return text
	}
	listed := map[string]int{}
	for _, i := range shown {
		listed[events[i].Topic]++
	}
	var parts []string
	for _, c := range t.topics {
		n := min(c.count-listed[c.topic], left)
		if n <= 0 {
			continue
		}
		if len(parts) == maxMore {
			break
		}
		parts = append(parts, fmt.Sprintf("%d × %s", n, code(or(c.topic, "none"), maxLineText)))
		left -= n
	}
	if left > 0 && len(parts) > 0 {
		parts = append(parts, fmt.Sprintf("%d of other topics", left))
	}
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	return text
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
