package backbone

import (
	"strings"

	"github.com/hubrelay/hubrelay/internal/streamid"
)

const zeroID = "0-0"

// CompareEntryIDs orders two positions in a log as cmp.Compare does. A position is a stream id, "1732153000123-4" or
// "1732153000123"; whatever is none counts as the log's beginning.
func CompareEntryIDs(a, b string) int {
	p, _ := parseEntryID(a)
	q, _ := parseEntryID(b)
	return p.Compare(q)
}

// IsEntryID tells whether s may stand for a position in a log.
func IsEntryID(s string) bool {
	_, ok := parseEntryID(s)
	return ok
}

// parseEntryID takes a time alone, too, as Redis does.
func parseEntryID(s string) (streamid.Position, bool) {
	if !strings.Contains(s, "-") {
		s += "-0"
	}
	if p, ok := streamid.ParsePosition(s); ok {
		return p, true
	}
	return streamid.Position{}, false
}
