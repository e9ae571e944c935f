package slack

import (
	"strings"

	slackgo "github.com/slack-go/slack"

	"github.com/hubrelay/hubrelay/internal/tmpl"
)

// Slack's limits for the output of templates. Slack rejects the whole message if one is exceeded, so long errors would
// not be shown.
const (
	maxText    = 40_000 // of a message
	maxEdited  = 4_000  // of an updated message, in bytes
	maxField   = 2000   // of a field of a section, or an element of a context
	maxFields  = 10
	maxPhrases = 10 // elements of a context
)

// limitBlocks truncates the texts of blocks to Slack's limits, each and in total. It disables the detection of names
// and links in them, because the text of a producer may look like one.
func limitBlocks(blocks *slackgo.Blocks) {
	left := maxTotal
	cut := func(o *slackgo.TextBlockObject, most int) {
		if o == nil {
			return
		}
		o.Verbatim = o.Type == slackgo.MarkdownType
		o.Text = truncateMarkdown(o.Text, max(1, min(most, left)), utf16Len)
		left -= utf16Len(o.Text)
	}
	for _, b := range blocks.BlockSet {
		switch b := b.(type) {
		case *slackgo.HeaderBlock:
			cut(b.Text, maxHeader)
		case *slackgo.SectionBlock:
			cut(b.Text, maxSection)
			b.Fields = b.Fields[:min(len(b.Fields), maxFields)]
			for _, f := range b.Fields {
				cut(f, maxField)
			}
		case *slackgo.ContextBlock:
			list := &b.ContextElements.Elements
			*list = (*list)[:min(len(*list), maxPhrases)]
			for _, e := range *list {
				if text, ok := e.(*slackgo.TextBlockObject); ok {
					cut(text, maxField)
				}
			}
		}
	}
}

const fence = "```"

// truncateMarkdown truncates mrkdwn to limit, measured by size, and appends an ellipsis. It never splits a character,
// an escape or a link, and closes open code. limit is at least 1.
func truncateMarkdown(text string, limit int, size func(string) int) string {
	if size(text) <= limit {
		return text
	}
	head := truncatePrefix(text, limit-size(ellipsis), size)
	if strings.Count(head, fence)%2 == 0 {
		return head + ellipsis
	}
	end := ellipsis + "\n" + fence
	if head = truncatePrefix(text, limit-size(end), size); strings.Count(head, fence)%2 == 0 {
		return head + ellipsis // without the fence
	}
	return head + end
}

// truncatePrefix returns the longest prefix of a text that size measures as at most limit.
func truncatePrefix(text string, limit int, size func(string) int) string {
	end := 0
	for end < len(text) {
		n := unitLength(text[end:])
		if limit -= size(text[end : end+n]); limit < 0 {
			break
		}
		end += n
	}
	return text[:end]
}

// unitLength returns the length in bytes of the first unit of text that must not be cut: an escape, a link, a code
// fence or a character.
func unitLength(text string) int {
	for _, whole := range []string{"&amp;", "&lt;", "&gt;", fence} {
		if strings.HasPrefix(text, whole) {
			return len(whole)
		}
	}
	if text[0] == '<' {
		if n := strings.IndexByte(text[:min(len(text), tmpl.MaxLink)], '>'); n > 0 {
			return n + 1
		}
	}
	return graphemeLen(text)
}
