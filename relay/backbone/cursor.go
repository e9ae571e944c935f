package backbone

import (
	"strings"

	"github.com/hubrelay/hubrelay/relay/cursor"
)

const begin = "0-0"

// CompareCursors orders two positions in a log as cmp.Compare does. A position is a stream id, "1732153000123-4" or
// "1732153000123"; whatever is none counts as the log's beginning.
func CompareCursors(a, b string) int {
	p, _ := parsePosition(a)
	q, _ := parsePosition(b)
	return p.Compare(q)
}

// ValidCursor tells whether s may stand for a position in a log.
func ValidCursor(s string) bool {
	_, ok := parsePosition(s)
	return ok
}

// parsePosition takes a time alone, too, as Redis does.
func parsePosition(s string) (cursor.Position, bool) {
	if !strings.Contains(s, "-") {
		s += "-0"
	}
	if p, ok := cursor.ParsePosition(s); ok {
		return p, true
	}
	return cursor.Position{}, false
}
