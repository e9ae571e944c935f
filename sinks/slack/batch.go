package slack

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	slackgo "github.com/slack-go/slack"
)

// Bounds of a batch, so that it can list many.
const (
	maxTopics    = 10  // topics that the summary counts by name
	maxLineText  = 120 // an identifier, a state, a topic
	maxLineError = 240 // an error
	maxLineList  = 300 // the identifiers of one kind
	maxLineItems = 3   // how many of them
)

// batch renders several notifications: counts and times, then a line for each in the order that they came. Where not all
// fit, errors come before the rest, and what is left out is counted.
func batch(id string, events []event) *slackgo.WebhookMessage {
	header := batchHeader(events)
	summary, foot := summary(events), batchFoot(id, events)
	lines := make([]string, len(events))
	for i := range events {
		lines[i] = line(&events[i])
	}
	const above = 3 // header, summary and foot
	most := maxBlocks - above
	if len(events) > most {
		most-- // the line about the rest
	}
	const rest = 100 // its text
	shown := choose(events, lines, most, maxTotal-maxHeader-units(summary)-units(foot)-rest)
	bars := bars(events, lines, shown)
	if n := len(events) - len(shown); n > 0 {
		bars = append(bars, bar(quiet, "and more", contextLine(fmt.Sprintf("*and %d more*, which did not fit into this message", n))))
	}
	return newMessage(header+" · "+alert(first(events)), header, []slackgo.Block{section(summary), contextLine(foot)}, bars)
}

// first is the first error, or else the first of all.
func first(events []event) *event {
	for i := range events {
		if events[i].severity == bad {
			return &events[i]
		}
	}
	return &events[0]
}

// choose returns the indices, in order, of the lines that fit: at most most, of at most left units together.
func choose(events []event, lines []string, most, left int) []int {
	order := make([]int, len(lines))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(btoi(events[b].severity == bad), btoi(events[a].severity == bad))
	})
	var shown []int
	for _, i := range order {
		if n := units(lines[i]); len(shown) < most && n <= left {
			left -= n
			shown = append(shown, i)
		}
	}
	slices.Sort(shown)
	return shown
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// bars puts neighbours of one severity beside one bar.
func bars(events []event, lines []string, shown []int) []slackgo.Attachment {
	var out []slackgo.Attachment
	var previous severity
	for n, i := range shown {
		e := &events[i]
		if n == 0 || e.severity != previous {
			out = append(out, bar(e.severity, e.headline()))
			previous = e.severity
		}
		blocks := &out[len(out)-1].Blocks
		blocks.BlockSet = append(blocks.BlockSet, section(lines[i]))
	}
	return out
}

func batchHeader(events []event) string {
	topics, trouble := countTopics(events), 0
	for _, e := range events {
		if e.severity == bad {
			trouble++
		}
	}
	header := fmt.Sprintf("%d notifications of %d topics", len(events), len(topics))
	if len(topics) == 1 {
		header = fmt.Sprintf("%d × %s", len(events), events[0].what)
	} else if trouble > 0 {
		header += fmt.Sprintf(", %d in trouble", trouble)
	}
	return header
}

type topicCount struct {
	topic string
	count int
}

// countTopics counts in the order of counts, then of appearance.
func countTopics(events []event) []topicCount {
	var out []topicCount
	at := map[string]int{}
	for _, e := range events {
		i, seen := at[e.Topic]
		if !seen {
			i = len(out)
			at[e.Topic] = i
			out = append(out, topicCount{topic: e.Topic})
		}
		out[i].count++
	}
	slices.SortStableFunc(out, func(a, b topicCount) int { return cmp.Compare(b.count, a.count) })
	return out
}

func summary(events []event) string {
	topics := countTopics(events)
	var lines []string
	for _, t := range topics[:min(len(topics), maxTopics)] {
		lines = append(lines, fmt.Sprintf("%d × %s", t.count, code(or(t.topic, "none"), maxLineText)))
	}
	if rest := len(topics) - len(lines); rest > 0 {
		lines = append(lines, fmt.Sprintf("and %d more topics", rest))
	}
	return strings.Join(lines, "\n")
}

func batchFoot(id string, events []event) string {
	var from, to time.Time
	for _, e := range events {
		if e.at.IsZero() {
			continue
		}
		if from.IsZero() || e.at.Before(from) {
			from = e.at
		}
		if e.at.After(to) {
			to = e.at
		}
	}
	foot := "Delivery " + code(or(id, "none"), maxLineText)
	switch {
	case from.IsZero():
	case clock(from) == clock(to):
		foot += " · " + clock(from)
	default:
		foot += " · " + clock(from) + " to " + clock(to)
	}
	return foot
}

// line says about one notification what its message would, in short. Its bounds keep it below maxSection.
func line(e *event) string {
	var out strings.Builder
	out.WriteString("*" + fit(e.what, maxLineText) + "* " + code(or(e.Topic, "none"), maxLineText) + stateLine(e, maxLineText))
	if text := code(e.Object.Error, maxLineError); text != "" {
		out.WriteString("\n*Error* " + text)
	}
	var ids []string
	for _, f := range identifiers(e) {
		if text := codes(f.values, maxLineItems, maxLineList); text != "" {
			ids = append(ids, f.title()+" "+text)
		}
	}
	ids = append(ids, "Notification "+code(or(e.id, "none"), maxLineText))
	if !e.at.IsZero() {
		ids = append(ids, clock(e.at))
	}
	out.WriteString("\n" + strings.Join(ids, " · "))
	return out.String()
}
