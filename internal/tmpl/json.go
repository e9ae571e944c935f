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

// IsJSON tells whether a Content-Type says that a body is JSON.
func IsJSON(contentType string) bool {
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && (kind == "application/json" || strings.HasSuffix(kind, "+json"))
}

// encode leaves <, > and & as they are, other than encoding/json, whose escapes mean the same and nobody can read.
func encode(v any) (string, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return "", err
	}
	return strings.TrimSuffix(out.String(), "\n"), nil
}

// CheckJSON says where a text that a template rendered is not JSON.
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
	at := int(min(max(syntax.Offset-1, 0), int64(len(text))))
	line := 1 + bytes.Count(text[:at], []byte("\n"))
	shown := string(text[max(0, at-20):min(len(text), at+20)])
	m.Text = relay.Truncate(fmt.Sprintf("what it renders is not JSON: %s, in line %d of it, near %q", syntax, line, strings.ToValidUTF8(shown, "")), maxShownError)
	return m
}
