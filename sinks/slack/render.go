package slack

import (
	"fmt"
	"slices"
	"strings"
	"time"

	slackgo "github.com/slack-go/slack"

	"github.com/hubrelay/hubrelay/relay"
)

// Slack's limits, from its reference of Block Kit. Slack rejects a message that exceeds one.
const (
	maxBlocks  = 50
	maxHeader  = 150
	maxSection = 3000
	// maxTotal limits the text of all blocks together. Slack does not document its limit. About 13,200 characters are
	// rejected with msg_blocks_too_long (slackapi/bolt-js#2509).
	maxTotal = 12_000
)

// Our own limits keep messages readable, and one notification below maxTotal.
const (
	maxAlert  = 400  // of the text for phones
	maxDetail = 1000 // of a field, of which Slack allows ten with 2,000
	maxShort  = 300  // of a topic or a state
	maxIDs    = 20   // identifiers in one field
)

// renderer converts deliveries to messages. It is immutable.
type renderer struct {
	meanings map[string]string
}

func newRenderer() *renderer {
	r := &renderer{meanings: map[string]string{}}
	for _, t := range slices.Concat(relay.Topics(), relay.OperationalTopics()) {
		r.meanings[t.Name] = strings.TrimSuffix(t.Meaning, ".")
	}
	return r
}

// topicMeaning returns the description of a topic.
func (r *renderer) topicMeaning(topic string) string {
	text := r.meanings[topic]
	if text == "" {
		text = cleanLine(topic)
	}
	return orDefault(text, "An event without a topic")
}

// renderDelivery renders one notification or a digest. A digest of one looks like its notification.
func (r *renderer) renderDelivery(d relay.Delivery) *slackgo.WebhookMessage {
	events := make([]event, len(d.Notifications))
	for i, n := range d.Notifications {
		events[i] = r.newEvent(n)
	}
	more := d.Digest != nil && d.Digest.Count > len(events)
	switch {
	case len(events) == 0 && !more: // no caller passes one
		return newMessage("Nothing happened", "Nothing happened", nil, nil)
	case len(events) == 1 && !more:
		return renderEvent(d.ID, &events[0])
	}
	return r.renderBatch(d, events)
}

// newMessage places the header outside the colored bar. alert is the text for phones, which Slack does not show
// elsewhere.
func newMessage(alert, header string, top []slackgo.Block, bars []slackgo.Attachment) *slackgo.WebhookMessage {
	blocks := append([]slackgo.Block{
		slackgo.NewHeaderBlock(slackgo.NewTextBlockObject(slackgo.PlainTextType, escapeAndTruncate(header, maxHeader),
			false, false)),
	}, top...)
	no := false
	return &slackgo.WebhookMessage{
		Text: escapeAndTruncate(alert, maxAlert), Parse: "none", UnfurlLinks: &no, UnfurlMedia: &no,
		Blocks: &slackgo.Blocks{BlockSet: blocks}, Attachments: bars,
	}
}

// newAttachment returns blocks with a colored bar. Without a fallback, Slack tells phones that there is no preview.
func newAttachment(s severity, fallback string, blocks ...slackgo.Block) slackgo.Attachment {
	return slackgo.Attachment{
		Color: severityColor(s), Fallback: escapeAndTruncate(fallback, maxAlert),
		Blocks: slackgo.Blocks{BlockSet: blocks},
	}
}

func newSection(text string) slackgo.Block {
	return slackgo.NewSectionBlock(newMarkdown(text), nil, nil)
}

func contextLine(text string) slackgo.Block { return slackgo.NewContextBlock("", newMarkdown(text)) }

// renderEvent also shows a delivery ID that differs from the ID of the notification, because dead letters have it.
func renderEvent(delivery string, e *event) *slackgo.WebhookMessage {
	topic := formatCode(orDefault(e.Topic, "none"), maxShort)
	blocks := []slackgo.Block{newSection("*Topic* " + topic + stateLine(e, maxShort))}
	if text := cleanLines(e.Object.Error); text != "" {
		blocks = append(blocks, newSection("*Error*\n"+codeBlock(text, maxSection-len("*Error*\n"))))
	}
	if fields := identifierFields(e); len(fields) > 0 {
		blocks = append(blocks, slackgo.NewSectionBlock(nil, fields, nil))
	}
	foot := "Event " + formatCode(orDefault(e.id, "none"), maxShort)
	if !e.at.IsZero() {
		foot += " · " + formatTime(e.at)
	}
	if delivery != e.id && cleanLine(delivery) != "" {
		foot += " · Delivery " + formatCode(delivery, maxShort)
	}
	blocks = append(blocks, contextLine(foot))
	var top []slackgo.Block
	if e.sample {
		top = []slackgo.Block{contextLine("A sample sent by `hubrelay sinks test`; nothing happened")}
	}
	return newMessage(phoneAlert(e), e.headlineText(), top, []slackgo.Attachment{
		newAttachment(e.severity, e.headlineText(), blocks...),
	})
}

// phoneAlert returns the text for phones, with the error before the identifiers.
func phoneAlert(e *event) string {
	return strings.Join(append([]string{e.headlineText()}, alertDetails(e)...), " · ")
}

func alertDetails(e *event) []string {
	var parts []string
	if text := cleanLine(e.Object.Error); text != "" {
		parts = append(parts, truncateText(text, maxAlert/2))
	}
	if e.Object.ID != "" && (e.operational == nil || e.operational.Sink != e.Object.ID) { // the headline names the sink
		parts = append(parts, cleanLine(e.Object.ID))
	}
	if e.Context.HubID != "" {
		parts = append(parts, "hub "+cleanLine(e.Context.HubID))
	}
	return parts
}

// truncateText truncates a text that is escaped later.
func truncateText(text string, limit int) string {
	used := 0
	for i := 0; i < len(text); {
		n := graphemeLen(text[i:])
		if used += utf16Len(text[i : i+n]); used > limit {
			return text[:i] + ellipsis
		}
		i += n
	}
	return text
}

func stateLine(e *event, limit int) string {
	if text := stateChange(e, limit); text != "" {
		return "\n" + text
	}
	return ""
}

func stateChange(e *event, limit int) string {
	state, before := formatCode(e.Object.State, limit), formatCode(previousState(e.data), limit)
	switch {
	case state == "" && before == "":
		return ""
	case before == "":
		return "*State* " + state
	case state == "":
		return "*State before* " + before
	}
	return "*State* " + before + " → " + state
}

// identifierFields returns the identifiers that people search for, at most seven.
func identifierFields(e *event) []*slackgo.TextBlockObject {
	var out []*slackgo.TextBlockObject
	for _, f := range listIdentifiers(e) {
		if text := formatCodes(f.values, maxIDs, maxDetail); text != "" {
			out = append(out, newMarkdown("*"+f.titleText()+"*\n"+text))
		}
	}
	return out
}

type identifier struct {
	one, many string
	values    []string
}

func (i identifier) titleText() string {
	if len(i.values) == 1 {
		return i.one
	}
	return i.many
}

// singleIdentifier returns an identifier with one value, which may be empty.
func singleIdentifier(name, value string) identifier {
	if cleanLine(value) == "" {
		return identifier{}
	}
	return identifier{name, name, []string{value}}
}

// listIdentifiers returns the identifiers of a notification. An object that is the only container, or similar, appears
// once.
func listIdentifiers(e *event) []identifier {
	if e.operational != nil {
		return append(e.operational.listIdentifiers(e), contextIdentifiers(e)...)
	}
	around := contextIdentifiers(e)
	for _, f := range around {
		if len(f.values) == 1 && f.values[0] == e.Object.ID {
			return around
		}
	}
	return append([]identifier{singleIdentifier("Object", e.Object.ID)}, around...)
}

func contextIdentifiers(e *event) []identifier {
	return []identifier{
		singleIdentifier("Hub", e.Context.HubID),
		singleIdentifier("Account", e.Context.AccountID),
		{"Environment", "Environments", e.Context.Environments},
		{"Cluster", "Clusters", e.Context.Clusters},
		{"Container", "Containers", e.Context.Containers},
		{"DNS zone", "DNS zones", e.Context.DNSZones},
	}
}

// formatCodes lists at most most values in at most limit units, and counts the others.
func formatCodes(values []string, most, limit int) string {
	const room = len(" and 1000000 more")
	var out strings.Builder
	shown, empty, used := 0, 0, 0
	for _, v := range values {
		text := formatCode(v, limit-room)
		if text == "" {
			empty++
			continue
		}
		if shown > 0 {
			text = ", " + text
		}
		if shown == most || used+utf16Len(text) > limit-room {
			break
		}
		used += utf16Len(text)
		out.WriteString(text)
		shown++
	}
	if rest := len(values) - shown - empty; rest > 0 {
		fmt.Fprintf(&out, " and %d more", rest)
	}
	return out.String()
}

func formatTime(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05 UTC") }

func orDefault(a, b string) string {
	if cleanLine(a) == "" {
		return b
	}
	return a
}
