// Package redact removes secrets from texts that a remote peer may have written, before they are logged or stored. A peer
// repeats what it received in error messages and status lines, often in another encoding.
package redact

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	// Replacement replaces a secret.
	Replacement = "(redacted)"
	// MinLength is the minimum length of a secret in bytes. Otherwise the secret "1" would redact every 1.
	MinLength = 4
)

// Secrets are texts that must not appear. The zero value has none. It is immutable.
type Secrets struct {
	forms []string // longest first, because a secret may contain another
}

// New returns the texts of at least [MinLength] bytes: plain, quoted as in Go and JSON, in the encodings of URLs, and as a part
// of a longer text in base64. "Bearer" and "Basic" are no secrets. It encodes and sorts all forms, so callers that redact often
// keep the result.
func New(texts ...string) Secrets { return Secrets{}.With(texts...) }

// With returns s with more texts.
func (s Secrets) With(texts ...string) Secrets {
	forms := slices.Clone(s.forms)
	for _, text := range texts {
		if len(text) >= MinLength && text != "Bearer" && text != "Basic" {
			forms = append(forms, encode(text)...)
		}
	}
	if len(forms) == len(s.forms) {
		return s
	}
	slices.SortFunc(forms, func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	return Secrets{slices.Compact(forms)}
}

// percentCode is an encoded byte in a URL. Go writes it in upper case, and .NET in lower case.
var percentCode = regexp.MustCompile(`%[0-9A-F]{2}`)

// encode returns the forms that a peer may write a text in.
func encode(text string) []string {
	quoted, inJSON := strconv.Quote(text), encodeJSON(text, false)
	forms := []string{
		text, quoted[1 : len(quoted)-1], inJSON, encodeJSON(text, true),
		strings.ReplaceAll(inJSON, "/", `\/`), // as PHP
	}
	for _, inURL := range []string{
		url.QueryEscape(text), url.PathEscape(text), url.User(text).String(), (&url.URL{Path: "/" + text}).EscapedPath()[1:],
	} {
		forms = append(forms, inURL, percentCode.ReplaceAllStringFunc(inURL, strings.ToLower))
	}
	return append(forms, base64Forms(text)...)
}

// encodeJSON returns a text as it is within a JSON string.
func encodeJSON(text string, escapeHTML bool) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(escapeHTML)
	_ = e.Encode(text) // cannot fail for a string
	return b.String()[1 : b.Len()-2]
}

// base64Forms returns the characters that a text has in base64 within any longer text, such as "user:password". They depend
// on the number of bytes before the text.
func base64Forms(text string) (forms []string) {
	for before := range 3 {
		padded := append(make([]byte, before), text...)
		for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			form := encoding.EncodeToString(padded)
			if len(padded)%3 != 0 {
				form = form[:len(form)-1] // the last character also depends on the next byte
			}
			form = form[(before*8+5)/6:] // the first ones also depend on the bytes before
			if len(form) >= MinLength {
				forms = append(forms, form)
			}
		}
	}
	return forms
}

// Text replaces the secrets in a text.
func (s Secrets) Text(text string) string {
	for _, form := range s.forms {
		text = strings.ReplaceAll(text, form, Replacement)
	}
	return text
}

// Truncated replaces the secrets in a text whose end is missing, also the beginning of one at its end.
func (s Secrets) Truncated(text string) string {
	text = s.Text(text)
	longest := 0
	for _, form := range s.forms {
		for n := len(form) - 1; n >= MinLength && n > longest; n-- {
			if strings.HasSuffix(text, form[:n]) {
				longest = n
			}
		}
	}
	if longest == 0 {
		return text
	}
	return text[:len(text)-longest] + Replacement
}

// AreIn reports whether a text contains a secret.
func (s Secrets) AreIn(text string) bool {
	return slices.ContainsFunc(s.forms, func(form string) bool { return strings.Contains(text, form) })
}

// Error returns err, or an error with the redacted text if it contains a secret.
func (s Secrets) Error(err error) error {
	if text := err.Error(); s.AreIn(text) {
		return errors.New(s.Text(text))
	}
	return err
}

// MaxLength returns the length of the longest form in bytes. A text that is truncated must be read so much further to find
// secrets at its end.
func (s Secrets) MaxLength() int {
	if len(s.forms) == 0 {
		return 0
	}
	return len(s.forms[0])
}
