// Package redact removes secrets from texts that a remote peer may have written, before they are logged or stored. A peer
// repeats what it received in error messages and status lines, often in another encoding.
package redact

import (
	"cmp"
	"encoding/base64"
	"errors"
	"net/url"
	"slices"
	"strings"
)

const (
	// Replacement replaces a secret.
	Replacement = "(redacted)"
	// MinLength is the minimum length of a secret in bytes. Otherwise the secret "1" would redact every 1.
	MinLength = 4
	// maxErrorLength is the maximum length of the text of an error in bytes.
	maxErrorLength = 2 << 10
)

// Secrets are texts that must not appear. The zero value has none. It is immutable.
type Secrets struct {
	texts []string // plain, the longest first, because a secret may contain another
	forms []string // other encodings, the longest first
}

// New returns the texts of at least [MinLength] bytes. They are found plain, with any characters escaped as in JSON, Go, HTML
// and URLs, and as a part of a longer text in base64. "Bearer" and "Basic" are no secrets. Callers that redact often keep the
// result.
func New(texts ...string) Secrets { return Secrets{}.With(texts...) }

// With returns s with more texts.
func (s Secrets) With(texts ...string) Secrets {
	all, forms := slices.Clone(s.texts), slices.Clone(s.forms)
	for _, text := range texts {
		if len(text) >= MinLength && text != "Bearer" && text != "Basic" {
			all = append(all, text)
			forms = append(forms, base64Forms(text)...)
			if strings.Contains(text, " ") {
				forms = append(forms, url.QueryEscape(text)) // decode does not know + for a space
			}
		}
	}
	if len(all) == len(s.texts) {
		return s
	}
	return Secrets{sortByLength(all), sortByLength(forms)}
}

// Join returns the secrets of s and others.
func (s Secrets) Join(others Secrets) Secrets {
	return Secrets{sortByLength(slices.Concat(s.texts, others.texts)), sortByLength(slices.Concat(s.forms, others.forms))}
}

// sortByLength sorts a list, the longest first, and removes duplicates.
func sortByLength(list []string) []string {
	slices.SortFunc(list, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(a, b)) })
	return slices.Compact(list)
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

// Text replaces the secrets in a text. Decoding escapes needs about fifty times the length of the text for a moment. For a text
// without a limit, use [Secrets.Prefix].
func (s Secrets) Text(text string) string {
	var d decoded // of text, if there are escapes
	for _, secret := range s.texts {
		before := text
		text = strings.ReplaceAll(text, secret, Replacement)
		if !hasEscapes(text) {
			continue
		}
		if d.starts == nil || text != before {
			d = decode(text)
		}
		if strings.Contains(d.text, secret) {
			text, d = replaceDecoded(text, d, secret), decoded{}
		}
	}
	for _, form := range s.forms {
		text = strings.ReplaceAll(text, form, Replacement)
	}
	return text
}

// Prefix returns up to n bytes of the beginning of a text, as valid UTF-8 and without secrets. It reads only [Secrets.MaxLength]
// bytes more.
func (s Secrets) Prefix(text string, n int) string {
	limit := n + s.MaxLength()
	return s.Shorten(text[:min(limit, len(text))], len(text) > limit, n)
}

// Shorten returns up to n bytes of the beginning of a text, as valid UTF-8 and without secrets. If isTruncated, the text may end
// with the beginning of a secret.
func (s Secrets) Shorten(text string, isTruncated bool, n int) string {
	text = strings.ToValidUTF8(text, "")
	if isTruncated {
		text = s.Truncated(text)
	} else {
		text = s.Text(text)
	}
	if len(text) > n {
		text = strings.ToValidUTF8(text[:n], "")
	}
	return text
}

// replaceDecoded replaces a secret with escaped characters in a text. d is the decoded text.
func replaceDecoded(text string, d decoded, secret string) string {
	var b strings.Builder
	end := 0 // in text
	for from := 0; ; {
		i := strings.Index(d.text[from:], secret)
		if i < 0 {
			return b.String() + text[end:]
		}
		b.WriteString(text[end:d.starts[from+i]] + Replacement)
		from += i + len(secret)
		end = d.starts[from]
	}
}

// Truncated replaces the secrets in a text whose end is missing, also the beginning of one at its end.
func (s Secrets) Truncated(text string) string {
	text = s.Text(text)
	cut := len(text)
	for _, list := range [][]string{s.texts, s.forms} {
		for _, form := range list {
			cut = min(cut, len(text)-measureOverlap(text, form))
		}
	}
	if hasEscapes(text) {
		d := decode(text[:len(text)-len(partialEscape.FindString(text))])
		for _, secret := range s.texts {
			if n := measureOverlap(d.text, secret); n > 0 {
				cut = min(cut, d.starts[len(d.text)-n])
			}
		}
	}
	if cut == len(text) {
		return text
	}
	return text[:cut] + Replacement
}

// measureOverlap returns the length of the longest beginning of form, without its end, at the end of text, or 0 if it is shorter
// than [MinLength].
func measureOverlap(text, form string) int {
	for n := min(len(form)-1, len(text)); n >= MinLength; n-- {
		if strings.HasSuffix(text, form[:n]) {
			return n
		}
	}
	return 0
}

// Error returns err, or an error with the redacted text if it contains a secret or has more than 2 KiB. Errors of net/http quote
// what a peer sent, up to its whole header.
func (s Secrets) Error(err error) error {
	text := err.Error()
	if redacted := s.Prefix(text, maxErrorLength); redacted != text {
		return errors.New(redacted)
	}
	return err
}

// MaxLength returns the maximum length of an encoded secret in bytes. A text that is truncated must be read so much further to
// find secrets at its end.
func (s Secrets) MaxLength() int {
	if len(s.texts) == 0 {
		return 0
	}
	return maxEscape * len(s.texts[0])
}
