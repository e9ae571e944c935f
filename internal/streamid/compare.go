package streamid

import (
	_ "embed" // compare.lua
	"strings"
)

// Zero is the position before the first entry of every stream.
const Zero = "0-0"

// Max is the highest ID that Redis allows. A stream with this last ID accepts no more entries.
const Max = "18446744073709551615-18446744073709551615"

// CompareLua defines the Lua function less(a, b), which reports whether stream ID a is lower than b. Put it before a
// script that uses it. Both IDs must be complete.
//
//go:embed compare.lua
var CompareLua string

// Compare orders two stream IDs as cmp.Compare does. An ID may lack its sequence number, such as "1732153000123". An
// invalid ID is equal to [Zero].
func Compare(a, b string) int {
	p, _ := parseID(a)
	q, _ := parseID(b)
	return p.Compare(q)
}

// IsValid reports whether s is a stream ID, with or without a sequence number.
func IsValid(s string) bool {
	_, ok := parseID(s)
	return ok
}

// parseID also accepts an ID without a sequence number, as Redis does.
func parseID(s string) (Position, bool) {
	if !strings.Contains(s, "-") {
		s += "-0"
	}
	if p, ok := ParsePosition(s); ok {
		return p, true
	}
	return Position{}, false
}
