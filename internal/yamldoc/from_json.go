package yamldoc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// FromJSON returns a JSON value as YAML in block style. The order of members stays. A text that YAML 1.1 or 1.2 could read as
// something else is quoted, and characters that could control a terminal are escaped.
func FromJSON(text []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var b bytes.Buffer
	if err := writeValue(&b, d, 0, true); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// maxNesting is the number of levels in block style. Deeper values are written in one line, as in JSON, because the indentation
// would be much longer than the value.
const maxNesting = 50

// writeValue writes the next value, which is indented by a number of spaces. atStart reports whether nothing precedes it in its
// line, except the "- " of a list.
func writeValue(b *bytes.Buffer, d *json.Decoder, indent int, atStart bool) error {
	separator := ""
	if !atStart {
		separator = " "
	}
	if indent >= 2*maxNesting {
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return err
		}
		var line bytes.Buffer
		if err := json.Compact(&line, value); err != nil {
			return err
		}
		b.WriteString(separator + escapeUnprintable(line.String()) + "\n")
		return nil
	}
	token, err := d.Token()
	if err != nil {
		return err
	}
	isObject := token == json.Delim('{')
	switch {
	case !isObject && token != json.Delim('['):
		b.WriteString(separator + formatScalar(token) + "\n")
		return nil
	case d.More():
	case isObject:
		b.WriteString(separator + "{}\n")
	default:
		b.WriteString(separator + "[]\n")
	}
	for first := true; d.More(); first = false {
		switch {
		case first && !atStart:
			b.WriteString("\n")
			fallthrough
		case !first:
			b.WriteString(strings.Repeat(" ", indent))
		}
		if isObject {
			name, err := d.Token()
			if err != nil {
				return err
			}
			b.WriteString(formatScalar(name) + ":")
			err = writeValue(b, d, indent+2, false)
			if err != nil {
				return err
			}
			continue
		}
		b.WriteString("- ")
		if err := writeValue(b, d, indent+2, true); err != nil {
			return err
		}
	}
	_, err = d.Token() // the end
	return err
}

var (
	plainText = regexp.MustCompile(`^[A-Za-z_/][A-Za-z0-9_./@+()-]*( [A-Za-z0-9_./@+()-]+)*$`)
	// reservedWords are texts that YAML 1.1 or 1.2 reads as a boolean or null, in lower case.
	reservedWords = []string{"true", "false", "yes", "no", "on", "off", "y", "n", "null"}
)

func formatScalar(token json.Token) string {
	text, isText := token.(string)
	switch {
	case token == nil:
		return "null"
	case !isText:
		return fmt.Sprint(token)
	case plainText.MatchString(text) && !slices.Contains(reservedWords, strings.ToLower(text)):
		return text
	}
	var quoted strings.Builder
	e := json.NewEncoder(&quoted)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // cannot fail for a string
	return escapeUnprintable(strings.TrimSuffix(quoted.String(), "\n"))
}

// escapeUnprintable escapes the characters that JSON may contain unescaped and that could control a terminal.
func escapeUnprintable(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r < 0x7f || unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
