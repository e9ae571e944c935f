package tmpl

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

// IsJSON reports whether contentType is a JSON media type.
func IsJSON(contentType string) bool {
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && (kind == "application/json" || strings.HasSuffix(kind, "+json"))
}

// encodeJSON encodes v as JSON. Unlike json.Marshal, it does not escape <, > and &, because the escapes are hard to
// read.
func encodeJSON(v any) (string, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return "", err
	}
	return strings.TrimSuffix(out.String(), "\n"), nil
}

// CheckJSON returns nil if text is valid JSON. Otherwise it returns a [*TemplateError] with the position of the error.
func CheckJSON(text []byte) error {
	if json.Valid(text) {
		return nil
	}
	m := &TemplateError{
		Text: "what it renders is not JSON",
		Hint: `write texts by toJson and without quotes around: {"error": {{ toJson .Object.Error }}}`,
	}
	var anything any
	err := json.Unmarshal(text, &anything)
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return m
	}
	if len(bytes.TrimSpace(text)) == 0 {
		m.Text = "it renders nothing, which is not JSON"
		return m
	}
	offset := int(min(max(syntax.Offset-1, 0), int64(len(text))))
	line := 1 + bytes.Count(text[:offset], []byte("\n"))
	excerpt := strings.ToValidUTF8(string(text[max(0, offset-20):min(len(text), offset+20)]), "")
	problem := fmt.Sprintf("what it renders is not JSON: %s, in line %d of the output, near %q", syntax, line, excerpt)
	m.Text = relay.Truncate(problem, maxShownError)
	return m
}
