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

func (s *batchSummary) countTopics(counts map[string]int) {
	for topic, n := range counts {
		if n > 0 {
			s.topics = append(s.topics, topicCount{topic, n})
		}
	}
	slices.SortFunc(s.topics, func(a, b topicCount) int {
		return cmp.Or(cmp.Compare(boolToInt(isTroubleTopic(b.topic)), boolToInt(isTroubleTopic(a.topic))),
			cmp.Compare(b.count, a.count),
			strings.Compare(a.topic, b.topic))
	})
}

// countProblems counts problems. An unlisted notification counts only if its topic is sufficient to know.
func (s *batchSummary) countProblems(events []event, listed map[string]int) {
	told := 0
	for _, c := range s.topics {
		told += c.count
		if isTroubleTopic(c.topic) {
			s.problems += c.count
		} else if c.count > listed[c.topic] {
			s.hasMoreProblems = true
		}
	}
	for i := range events {
		if events[i].severity == bad && !isTroubleTopic(events[i].Topic) {
			s.problems++
		}
	}
	s.hasMoreProblems = s.hasMoreProblems || told < s.count
	s.problems = min(s.problems, s.count)
}

// countDeaths counts dead letters. An unlisted notice counts as one, the minimum.
func (s *batchSummary) countDeaths(events []event, listed int) {
	sinks := map[string]bool{}
	for i := range events {
		if n := events[i].deadLetterCount(); n > 0 {
			s.deadLetters += n
			s.sink = cleanLine(events[i].operational.Sink)
			sinks[s.sink] = true
		}
	}
	all := listed
	if s.oneTopic() == relay.TopicDeadLetterCreated {
		all = s.count
	}
	for _, c := range s.topics {
		if c.topic == relay.TopicDeadLetterCreated {
			all = max(all, c.count)
		}
	}
	s.deadLetters += all - listed
	s.deadLettersKnown = all == listed
	if !s.deadLettersKnown || len(sinks) != 1 {
		s.sink = ""
	}
}

// deadLetterText returns the number of dead letters as text.
func (s *batchSummary) deadLetterText() string {
	if s.deadLettersKnown {
		return deadLettersText(s.deadLetters)
	}
	return "at least " + deadLettersText(s.deadLetters)
}

// isTroubleTopic reports whether every notification of a topic is a problem.
func isTroubleTopic(topic string) bool { return relay.SeverityOf(topic, relay.Object{}) == bad }

// fillTimes sets the times that the digest does not contain.
func (s *batchSummary) fillTimes(events []event) {
	if s.first.IsZero() || s.last.IsZero() {
		s.first, s.last = time.Time{}, time.Time{}
		for i := range events {
			at := events[i].at
			if at.IsZero() {
				continue
			}
			if s.first.IsZero() || at.Before(s.first) {
				s.first = at
			}
			if at.After(s.last) {
				s.last = at
			}
		}
	}
	if s.last.Before(s.first) {
		s.first, s.last = s.last, s.first
	}
	s.first, s.last = s.first.UTC(), s.last.UTC()
}

// headerText returns the header, with the most severe facts first.
func (s *batchSummary) headerText(r *renderer) string {
	all := fmt.Sprintf("%d events", s.count)
	switch one := s.oneTopic(); {
	case one == relay.TopicDeadLetterCreated:
		text := s.deadLetterText()
		if s.sink != "" {
			text += ": " + s.sink
		}
		return strings.ToUpper(text[:1]) + text[1:]
	case one != "" && (s.problems == 0 || s.problems == s.count):
		return fmt.Sprintf("%d × %s", s.count, r.topicMeaning(one))
	case one != "":
		all = fmt.Sprintf("%d × %s", s.count, r.topicMeaning(one))
	case s.problems == s.count:
		return fmt.Sprintf("%d problems of %d topics", s.count, len(s.topics))
	case s.problems == 0:
		return fmt.Sprintf("%s of %d topics", all, len(s.topics))
	}
	least, plural := "", "s"
	if s.hasMoreProblems {
		least = "at least "
	}
	if s.problems == 1 {
		plural = ""
	}
	text := fmt.Sprintf("%s%d problem%s among %s", least, s.problems, plural, all)
	return strings.ToUpper(text[:1]) + text[1:]
}

// oneTopic returns the topic that all notifications share, or an empty string.
func (s *batchSummary) oneTopic() string {
	if topic := s.shared["topic"]; topic != "" {
		return topic
	}
	if len(s.topics) == 1 && s.topics[0].count >= s.count {
		return s.topics[0].topic
	}
	return ""
}

// summaryText returns the common values and the counts by topic.
func (s *batchSummary) summaryText() string {
	var common, lines []string
	add := func(name, value string) { common = append(common, name+" "+formatCode(value, maxLineText)) }
	one := s.oneTopic()
	if one != "" {
		add("topic", one)
	}
	for _, name := range []string{"hub", "cluster", "account"} {
		if value := s.shared[name]; cleanLine(value) != "" {
			add(name, value)
		}
	}
	if len(common) > 0 {
		lines = append(lines, "In common: "+strings.Join(common, " · "))
	}
	if one == "" {
		lines = append(lines, s.topicLines()...)
	}
	if len(lines) == 0 {
		lines = append(lines, "No topics")
	}
	return strings.Join(lines, "\n")
}

func (s *batchSummary) topicLines() []string {
	var lines []string
	rest, others := s.count, len(s.topics)
	for _, c := range s.topics[:min(len(s.topics), maxTopics)] {
		line := fmt.Sprintf("%d × %s", c.count, formatCode(orDefault(c.topic, "none"), maxLineText))
		if c.topic == relay.TopicDeadLetterCreated && s.deadLetters > c.count {
			line += " · " + s.deadLetterText()
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
func (s *batchSummary) footerText(id string, shown int) string {
	var parts []string
	if at := s.timeRange(); at != "" {
		parts = append(parts, at)
	}
	if shown < s.count {
		parts = append(parts, fmt.Sprintf("%d of %d listed", shown, s.count))
	}
	return strings.Join(append(parts, "Delivery "+formatCode(orDefault(id, "none"), maxLineText)), " · ")
}

func (s *batchSummary) timeRange() string {
	switch {
	case s.first.IsZero():
		return ""
	case formatTime(s.first) == formatTime(s.last):
		return formatTime(s.first)
	case s.oneDay():
		return s.first.Format("2006-01-02 15:04:05") + " to " + s.last.Format("15:04:05 UTC")
	}
	return s.first.Format("2006-01-02 15:04:05") + " to " + formatTime(s.last)
}

func (s *batchSummary) oneDay() bool {
	return s.first.Format(time.DateOnly) == s.last.Format(time.DateOnly)
}

// formatTime returns the time of a notification, with the date if the footer does not determine it.
func (s *batchSummary) formatTime(at time.Time) string {
	switch at = at.UTC(); {
	case at.IsZero():
		return ""
	case s.oneDay() && at.Format(time.DateOnly) == s.first.Format(time.DateOnly):
		return at.Format("15:04:05")
	}
	return at.Format("2 Jan 15:04:05")
}

// omittedText returns the number of unlisted notifications, by topic if that adds information.
func (s *batchSummary) omittedText(events []event, shown []int) string {
	left := s.count - len(shown)
	if left <= 0 {
		return ""
	}
	text := fmt.Sprintf("*and %d more*", left)
	if s.oneTopic() != "" {
		return text
	}
	listed := map[string]int{}
	for _, i := range shown {
		listed[events[i].Topic]++
	}
	var parts []string
	for _, c := range s.topics {
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
