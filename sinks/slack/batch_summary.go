package slack

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// batchSummary summarizes all notifications of a batch, including the unlisted ones.
type batchSummary struct {
	count int
	// topics starts with topics of problems, followed by the most frequent ones.
	topics []topicCount
	// problems is the number of known problems. Unlisted notifications may add more.
	problems        int
	hasMoreProblems bool
	// deadLetters is the number of dead letters in the notices, a lower bound if some are not listed. sink is their
	// sink if it is the same for all.
	deadLetters      int
	deadLettersKnown bool
	sink             string
	// shared contains the values that all notifications have in common.
	shared      map[string]string
	first, last time.Time
}

type topicCount struct {
	topic string
	count int
}

// newBatchSummary takes the numbers from the digest of d, and missing ones from the events.
func newBatchSummary(d relay.Delivery, events []event) *batchSummary {
	t := &batchSummary{count: len(events)}
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
		t.shared = g.Shared
	}
	t.countTopics(counts)
	t.countProblems(events, listed)
	t.countDeaths(events, listed[relay.TopicDeadLetterCreated])
	t.fillTimes(events)
	return t
}

func (t *batchSummary) countTopics(counts map[string]int) {
	for topic, n := range counts {
		if n > 0 {
			t.topics = append(t.topics, topicCount{topic, n})
		}
	}
	slices.SortFunc(t.topics, func(a, b topicCount) int {
		return cmp.Or(cmp.Compare(boolToInt(isTroubleTopic(b.topic)), boolToInt(isTroubleTopic(a.topic))),
			cmp.Compare(b.count, a.count),
			strings.Compare(a.topic, b.topic))
	})
}

// countProblems counts problems. An unlisted notification counts only if its topic is sufficient to know.
func (t *batchSummary) countProblems(events []event, listed map[string]int) {
	told := 0
	for _, c := range t.topics {
		told += c.count
		if isTroubleTopic(c.topic) {
			t.problems += c.count
		} else if c.count > listed[c.topic] {
			t.hasMoreProblems = true
		}
	}
	for i := range events {
		if events[i].severity == bad && !isTroubleTopic(events[i].Topic) {
			t.problems++
		}
	}
	t.hasMoreProblems = t.hasMoreProblems || told < t.count
	t.problems = min(t.problems, t.count)
}

// countDeaths counts dead letters. An unlisted notice counts as one, the minimum.
func (t *batchSummary) countDeaths(events []event, listed int) {
	sinks := map[string]bool{}
	for i := range events {
		if n := events[i].deadLetterCount(); n > 0 {
			t.deadLetters += n
			t.sink = cleanLine(events[i].operational.Sink)
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
	t.deadLetters += all - listed
	t.deadLettersKnown = all == listed
	if !t.deadLettersKnown || len(sinks) != 1 {
		t.sink = ""
	}
}

// deadLetterText returns the number of dead letters as text.
func (t *batchSummary) deadLetterText() string {
	if t.deadLettersKnown {
		return deadLettersText(t.deadLetters)
	}
	return "at least " + deadLettersText(t.deadLetters)
}

// isTroubleTopic reports whether every notification of a topic is a problem.
func isTroubleTopic(topic string) bool { return relay.SeverityOf(topic, relay.Object{}) == bad }

// fillTimes sets the times that the digest does not contain.
func (t *batchSummary) fillTimes(events []event) {
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

// headerText returns the header, with the most severe facts first.
func (t *batchSummary) headerText(r *renderer) string {
	all := fmt.Sprintf("%d events", t.count)
	switch one := t.oneTopic(); {
	case one == relay.TopicDeadLetterCreated:
		text := t.deadLetterText()
		if t.sink != "" {
			text += ": " + t.sink
		}
		return strings.ToUpper(text[:1]) + text[1:]
	case one != "" && (t.problems == 0 || t.problems == t.count):
		return fmt.Sprintf("%d × %s", t.count, r.topicMeaning(one))
	case one != "":
		all = fmt.Sprintf("%d × %s", t.count, r.topicMeaning(one))
	case t.problems == t.count:
		return fmt.Sprintf("%d problems of %d topics", t.count, len(t.topics))
	case t.problems == 0:
		return fmt.Sprintf("%s of %d topics", all, len(t.topics))
	}
	least, plural := "", "s"
	if t.hasMoreProblems {
		least = "at least "
	}
	if t.problems == 1 {
		plural = ""
	}
	text := fmt.Sprintf("%s%d problem%s among %s", least, t.problems, plural, all)
	return strings.ToUpper(text[:1]) + text[1:]
}

// oneTopic returns the topic that all notifications share, or an empty string.
func (t *batchSummary) oneTopic() string {
	if topic := t.shared["topic"]; topic != "" {
		return topic
	}
	if len(t.topics) == 1 && t.topics[0].count >= t.count {
		return t.topics[0].topic
	}
	return ""
}

// summaryText returns the common values and the counts by topic.
func (t *batchSummary) summaryText() string {
	var common, lines []string
	add := func(name, value string) { common = append(common, name+" "+formatCode(value, maxLineText)) }
	one := t.oneTopic()
	if one != "" {
		add("topic", one)
	}
	for _, name := range []string{"hub", "cluster", "account"} {
		if value := t.shared[name]; cleanLine(value) != "" {
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

func (t *batchSummary) topicLines() []string {
	var lines []string
	rest, others := t.count, len(t.topics)
	for _, c := range t.topics[:min(len(t.topics), maxTopics)] {
		line := fmt.Sprintf("%d × %s", c.count, formatCode(orDefault(c.topic, "none"), maxLineText))
		if c.topic == relay.TopicDeadLetterCreated && t.deadLetters > c.count {
			line += " · " + t.deadLetterText()
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

// footerText returns the time range, the number of listed notifications, and the delivery ID.
func (t *batchSummary) footerText(id string, shown int) string {
	var parts []string
	if at := t.timeRange(); at != "" {
		parts = append(parts, at)
	}
	if shown < t.count {
		parts = append(parts, fmt.Sprintf("%d of %d listed", shown, t.count))
	}
	return strings.Join(append(parts, "Delivery "+formatCode(orDefault(id, "none"), maxLineText)), " · ")
}

func (t *batchSummary) timeRange() string {
	switch {
	case t.first.IsZero():
		return ""
	case formatTime(t.first) == formatTime(t.last):
		return formatTime(t.first)
	case t.oneDay():
		return t.first.Format("2006-01-02 15:04:05") + " to " + t.last.Format("15:04:05 UTC")
	}
	return t.first.Format("2006-01-02 15:04:05") + " to " + formatTime(t.last)
}

func (t *batchSummary) oneDay() bool {
	return t.first.Format(time.DateOnly) == t.last.Format(time.DateOnly)
}

// formatTime returns the time of a notification, with the date if the footer does not determine it.
func (t *batchSummary) formatTime(at time.Time) string {
	switch at = at.UTC(); {
	case at.IsZero():
		return ""
	case t.oneDay() && at.Format(time.DateOnly) == t.first.Format(time.DateOnly):
		return at.Format("15:04:05")
	}
	return at.Format("2 Jan 15:04:05")
}

// omittedText returns the number of unlisted notifications, by topic if that adds information.
func (t *batchSummary) omittedText(events []event, shown []int) string {
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
		parts = append(parts, fmt.Sprintf("%d × %s", n, formatCode(orDefault(c.topic, "none"), maxLineText)))
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

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
