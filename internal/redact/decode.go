package redact

import (
	"encoding/json"
	"html"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// maxEscape is the usual maximum length of an escaped byte, such as \u002b.
const maxEscape = 6

var (
	// escape matches an escaped character of JSON, Go, HTML or a URL. A surrogate pair of JSON is one character.
	escape = regexp.MustCompile(`\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}` +
		`|\\["\\/'abfnrtv]|%[0-9a-fA-F]{2}|&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|amp|lt|gt|quot|apos);`)
	// partialEscape matches the beginning of an escaped character at the end of a text.
	partialEscape = regexp.MustCompile(`(?:\\(?:u[0-9a-fA-F]{0,3}|x[0-9a-fA-F]?)?|%[0-9a-fA-F]?|&[#a-zA-Z0-9]{0,8})$`)
)

// hasEscapes reports whether a text may have escaped characters.
func hasEscapes(text string) bool { return strings.ContainsAny(text, `\%&`) }

// decoded is a text without escapes.
type decoded struct {
	text   string
	starts []int // position in the encoded text, of each byte and of the end
}

// decode replaces the escaped characters of a text once.
func decode(text string) decoded {
	var b strings.Builder
	starts := make([]int, 0, len(text)+1)
	write := func(s string, start, step int) {
		b.WriteString(s)
		for i := range len(s) {
			starts = append(starts, start+i*step)
		}
	}
	end := 0
	for _, m := range escape.FindAllStringIndex(text, -1) {
		write(text[end:m[0]], end, 1)
		write(decodeEscape(text[m[0]:m[1]]), m[0], 0)
		end = m[1]
	}
	write(text[end:], end, 1)
	return decoded{b.String(), append(starts, len(text))}
}

// decodeEscape returns the character of an escape, or the escape itself if it is not valid.
func decodeEscape(s string) string {
	var plain string
	var err error
	switch {
	case s[0] == '%':
		plain, err = url.PathUnescape(s)
	case s[0] == '&':
		plain = html.UnescapeString(s)
	case s == `\'`:
		plain = "'"
	case s == `\/`, s[1] == 'u': // JSON also has surrogate pairs
		err = json.Unmarshal([]byte(`"`+s+`"`), &plain)
	default:
		plain, err = strconv.Unquote(`"` + s + `"`)
	}
	if err != nil {
		return s
	}
	return plain
}
