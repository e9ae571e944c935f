package slack

import (
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	slackgo "github.com/slack-go/slack"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// ellipsis ends a truncated text.
	ellipsis = "…"
	// maxCluster is the maximum number of code points in a character. It allows truncating a long series of accents.
	maxCluster = 32
	// maxInput is the maximum size of a text in bytes, far more than Slack shows. The rest is ignored.
	maxInput = 32 << 10
)

// utf16Len returns the length of a text in UTF-16 code units. Slack does not define its characters, and no other count
// is higher.
func utf16Len(s string) int {
	n := 0
	for _, r := range s {
		n += max(utf16.RuneLen(r), 1)
	}
	return n
}

// escapeAndTruncate makes text safe for Slack with at most limit units. It escapes &, < and >, so no text becomes a
// link or mention, and ends a long text with a mark. It never cuts a character of several code points or an escape.
// limit is at least 1.
func escapeAndTruncate(text string, limit int) string {
	var out strings.Builder
	used, end := 0, 0 // end is the last position with room for the mark
	for len(text) > 0 {
		n := graphemeLen(text)
		piece := escapeMarkup(text[:n])
		text = text[n:]
		if used += utf16Len(piece); used > limit {
			return out.String()[:end] + ellipsis
		}
		out.WriteString(piece)
		if used < limit {
			end = out.Len()
		}
	}
	return out.String()
}

// escapeMarkup follows https://docs.slack.dev/messaging/formatting-message-text#escaping.
func escapeMarkup(s string) string {
	if !strings.ContainsAny(s, "&<>") {
		return s
	}
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(s)
}

// sanitizeForTemplate prepares a text for templates: it escapes it and removes direction controls and invisible
// characters.
func sanitizeForTemplate(s string) string { return escapeMarkup(strings.Map(keepVisible, s)) }

// graphemeLen returns the length in bytes of the first character as people see it: a letter with its accents, a flag,
// an emoji of a family. It is approximate: it may be too long, but not too short.
func graphemeLen(s string) int {
	first, n := utf8.DecodeRuneInString(s)
	flags, joined := isFlag(first), false
	for count := 1; n < len(s) && count < maxCluster; count++ {
		r, size := utf8.DecodeRuneInString(s[n:])
		switch {
		case joined, unicode.Is(unicode.M, r), r >= 0x1F3FB && r <= 0x1F3FF, r >= 0xE0020 && r <= 0xE007F:
			joined = false
		case r == '\u200d':
			joined = true
		case flags && isFlag(r):
			flags = false
		default:
			return n
		}
		n += size
	}
	return n
}

// isFlag reports whether r is one half of a flag.
func isFlag(r rune) bool { return r >= 0x1F1E6 && r <= 0x1F1FF }

// cleanLine removes characters that do not belong in a line of text: control characters, direction controls, and
// invisible characters, which could make two identifiers look the same. White space becomes a single space.
func cleanLine(s string) string {
	return strings.Join(strings.FieldsFunc(strings.Map(keepVisible, relay.Truncate(s, maxInput)), unicode.IsSpace),
		" ")
}

// cleanLines is cleanLine for several lines. It keeps line breaks and indentation.
func cleanLines(s string) string {
	s = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\u2028", "\n", "\u2029",
		"\n").Replace(relay.Truncate(s, maxInput))
	return strings.Trim(strings.Map(keepVisible, s), "\n ")
}

func keepVisible(r rune) rune {
	switch {
	case r == '\n' || r == '\t':
		return r
	case unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r):
		return -1
	case r == 0x200B, r >= 0x2060 && r <= 0x2064, r == 0xFEFF, r >= 0xFFF9 && r <= 0xFFFB:
		return -1
	}
	return r
}

// replaceBackticks replaces backticks, which would end code, by similar characters.
func replaceBackticks(s string) string { return strings.ReplaceAll(s, "`", "ˋ") }

// formatCode renders a value literally, in at most limit units. It returns an empty string for an empty value.
func formatCode(value string, limit int) string {
	switch value = cleanLine(value); {
	case value == "":
		return ""
	case isRTL(value):
		// Without isolation, "before → after" would read from right to left.
		return "\u2068`" + escapeAndTruncate(replaceBackticks(value), limit-4) + "`\u2069"
	}
	return "`" + escapeAndTruncate(replaceBackticks(value), limit-2) + "`"
}

// isRTL reports whether a text contains right-to-left letters.
func isRTL(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool {
		return r >= 0x590 && r <= 0x8FF || r >= 0xFB1D && r <= 0xFDFF || r >= 0xFE70 && r <= 0xFEFE ||
			r >= 0x10800 && r <= 0x10FFF || r >= 0x1E800 && r <= 0x1EFFF
	})
}

// codeBlock renders lines literally, in at most limit units.
func codeBlock(lines string, limit int) string {
	return fence + "\n" + escapeAndTruncate(replaceBackticks(cleanLines(lines)), limit-2*len(fence)-2) + "\n" + fence
}

// newMarkdown returns a text with our own markup. With verbatim, Slack detects no links and names in it.
func newMarkdown(text string) *slackgo.TextBlockObject {
	return slackgo.NewTextBlockObject(slackgo.MarkdownType, text, false, true)
}
