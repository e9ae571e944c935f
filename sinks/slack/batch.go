package slack

import (
	"fmt"
	"slices"
	"strings"

	slackgo "github.com/slack-go/slack"

	"github.com/hubrelay/hubrelay/relay"
)

// Limits of one batch message.
const (
	maxTopics    = 10  // topics that the summary counts by name
	maxMore      = 4   // maximum topics in the count of unlisted notifications
	maxLineText  = 120 // characters of an identifier, a state or a topic
	maxLineError = 240 // characters of an error
	maxLineList  = 300 // characters of all identifiers of one kind
	maxLineItems = 3   // identifiers of one kind
	maxRest      = 700 // characters of the line about the rest
)

// renderBatch renders a digest or a batch: counts, common values and times, then one line per listed notification,
// problems first. Lines do not repeat common values. Unlisted notifications are counted.
func (r *renderer) renderBatch(d relay.Delivery, events []event) *slackgo.WebhookMessage {
	t := newBatchSummary(d, events)
	header, summary := t.headerText(r), t.summaryText()
	order := problemsFirst(events)
	const above = 3 // header, summary and foot
	most := maxBlocks - above
	if t.count > most {
		most-- // the line about the rest
	}
	left := maxTotal - maxHeader - utf16Len(summary) - utf16Len(t.footerText(d.ID, 0)) - maxRest
	shown, lines := t.selectLines(events, order, most, left)
	bars := buildAttachments(events, lines, shown)
	if rest := t.omittedText(events, shown); rest != "" {
		bars = append(bars, newAttachment(quiet, "and more", contextLine(rest)))
	}
	text := header
	if len(order) > 0 {
		if first := t.phoneText(&events[order[0]]); first != "" {
			text += ", among them: " + first // only one notification has these details
		}
	}
	top := []slackgo.Block{newSection(summary), contextLine(t.footerText(d.ID, len(shown)))}
	return newMessage(text, header, top, bars)
}

// phoneText returns the text for phones after the header, from the first listed notification.
func (s *batchSummary) phoneText(e *event) string {
	if s.oneTopic() == "" {
		return phoneAlert(e)
	}
	// The header already contains the meaning.
	first := cleanLine(e.Object.State)
	if e.operational != nil {
		first = cleanLine(e.operational.Sink)
		if n := e.deadLetterCount(); n > 0 {
			first = strings.TrimSuffix(fmt.Sprintf("%d of %s", n, first), " of ")
		}
	}
	return strings.Join(append(nonEmpty(first), alertDetails(e)...), " · ")
}

func nonEmpty(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}

// problemsFirst returns the indices of the events, problems first, otherwise in their order.
func problemsFirst(events []event) []int {
	order := make([]int, 0, len(events))
	for _, wanted := range []bool{true, false} {
		for i := range events {
			if (events[i].severity == bad) == wanted {
				order = append(order, i)
			}
		}
	}
	return order
}

// selectLines returns the elements of order whose lines fit, and their lines: at most most lines, which have at most
// left units in total.
func (s *batchSummary) selectLines(events []event, order []int, most, left int) (shown []int, lines []string) {
	const shortest = 40 // minimum length of a line; limits the number of rendered lines
	for _, i := range order {
		if len(shown) == most || left < shortest {
			break
		}
		line := s.lineFor(&events[i])
		if n := utf16Len(line); n <= left {
			left -= n
			shown, lines = append(shown, i), append(lines, line)
		}
	}
	return shown, lines
}

// buildAttachments groups consecutive lines of one severity under one bar.
func buildAttachments(events []event, lines []string, shown []int) []slackgo.Attachment {
	var out []slackgo.Attachment
	var previous severity
	for n, i := range shown {
		e := &events[i]
		if n == 0 || e.severity != previous {
			out = append(out, newAttachment(e.severity, e.headlineText()))
			previous = e.severity
		}
		blocks := &out[len(out)-1].Blocks
		blocks.BlockSet = append(blocks.BlockSet, newSection(lines[n]))
	}
	return out
}

// lineFor returns the short text of one notification, without the values in the summary. Its limits keep it below
// maxSection.
func (s *batchSummary) lineFor(e *event) string {
	var what, ids []string
	switch {
	case e.Topic != s.oneTopic() || e.Topic == "":
		topic := formatCode(orDefault(e.Topic, "none"), maxLineText)
		what = append(what, "*"+escapeAndTruncate(e.meaningText(), maxLineText)+"* "+topic)
	case e.deadLetterCount() > 0: // the header contains the sum
		what = append(what, "*"+escapeAndTruncate(e.meaningText(), maxLineText)+"*")
	}
	if text := stateChange(e, maxLineText); text != "" {
		what = append(what, text)
	}
	if text := formatCode(e.Object.Error, maxLineError); text != "" {
		what = append(what, "*Error* "+text)
	}
	for _, f := range listIdentifiers(e) {
		if s.isShared(f) {
			continue
		}
		if text := formatCodes(f.values, maxLineItems, maxLineList); text != "" {
			ids = append(ids, f.titleText()+" "+text)
		}
	}
	text := strings.Join(append(ids, "Event "+formatCode(orDefault(e.id, "none"), maxLineText)), " · ")
	if len(what) > 0 {
		text = strings.Join(what, " · ") + "\n" + text
	}
	if at := s.formatTime(e.at); at != "" {
		text = at + " · " + text
	}
	return text
}

// isShared reports whether the summary contains this value for all notifications.
func (s *batchSummary) isShared(f identifier) bool {
	switch f.one {
	case "Hub":
		return f.values[0] == s.shared["hub"]
	case "Cluster":
		// A shared list of values is one sorted text without duplicates.
		by := s.shared["cluster"]
		return by != "" && strings.Join(slices.Compact(slices.Sorted(slices.Values(f.values))), ", ") == by
	}
	return false
}
