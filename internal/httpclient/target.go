package httpclient

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/internal/netguard"
)

const (
	// redacted stands where a part of a URL stood.
	redacted = "(redacted)"
	// minSecretLength keeps a path like /a from blotting out every a.
	minSecretLength = 4
)

// Target is a URL that may be posted to. Its user, path and query count as secret. It is immutable.
type Target struct {
	url     url.URL
	secrets []string
}

// ParseTarget reads an http or https URL and judges its host as far as that is possible without DNS. Its errors follow
// the name of a configuration key and repeat nothing of the URL.
func ParseTarget(text string, g *netguard.Guard) (*Target, error) {
	u, err := url.Parse(text)
	switch {
	case strings.ContainsAny(text, "\r\n"):
		return nil, errors.New("has more than one line: give one address")
	case err != nil:
		return nil, errors.New("is not a URL")
	case strings.Contains(text, " "):
		return nil, errors.New("holds a blank: give one address, and write %20 where a blank belongs to it")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("must begin with https:// or http://")
	case u.Hostname() == "":
		return nil, errors.New("names no host")
	case strings.Contains(text, "#"):
		return nil, errors.New("must not have a fragment (#…): it would never be sent")
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			return nil, errors.New("has a port outside 1 to 65535")
		}
	}
	if err := g.CheckHost(u.Hostname()); err != nil {
		return nil, fmt.Errorf("cannot be dialled: %w", err)
	}
	return &Target{url: *u, secrets: secretParts(u)}, nil
}

// URL returns a copy of the URL, which is the caller's to keep secret.
func (t *Target) URL() *url.URL {
	u := t.url
	return &u
}

// Host is the one part of the URL that errors and logs may show: host and, where given, port.
func (t *Target) Host() string { return t.url.Host }

// Hash is the same for equal URLs and shows nothing of them.
func (t *Target) Hash() string {
	sum := sha256.Sum256([]byte(t.url.String()))
	return hex.EncodeToString(sum[:12])
}

// Redact takes the secret parts of the URL out of text.
func (t *Target) Redact(text string) string { return redact(text, t.secrets) }

func redact(text string, hidden []string) string {
	for _, part := range hidden {
		text = strings.ReplaceAll(text, part, redacted)
	}
	return text
}

// redactTail takes the beginning of a hidden part off the end of a text that was cut there.
func redactTail(text string, hidden []string) string {
	for _, part := range hidden {
		for n := len(part) - 1; n >= minSecretLength; n-- {
			if strings.HasSuffix(text, part[:n]) {
				return text[:len(text)-n] + redacted
			}
		}
	}
	return text
}

// secretParts are the parts of a URL that may be credentials, longest first.
func secretParts(u *url.URL) []string {
	parts := []string{u.RawQuery, u.EscapedPath(), u.Path}
	for _, path := range []string{u.EscapedPath(), u.Path} {
		path = strings.Trim(path, "/")
		parts = append(parts, path)
		for _, segment := range strings.Split(path, "/") {
			if !isPublicSegment(segment) {
				parts = append(parts, segment)
			}
		}
	}
	if u.User != nil {
		password, _ := u.User.Password()
		parts = append(parts, u.User.String(), u.User.Username(), password)
	}
	for _, values := range u.Query() {
		parts = append(parts, values...)
	}
	return sortBySize(parts)
}

// sortBySize leaves out what is too short to hide, and what comes twice. It adds what is spelled another way in quotes.
func sortBySize(parts []string) []string {
	for _, p := range parts {
		if quoted := strconv.Quote(p); len(quoted) > len(p)+2 {
			parts = append(parts, quoted[1:len(quoted)-1])
		}
	}
	parts = slices.DeleteFunc(parts, func(p string) bool { return len(p) < minSecretLength })
	slices.SortFunc(parts, func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	return slices.Compact(parts)
}

// isPublicSegment says whether a segment of a path is a word that addresses are made of, and so no secret.
func isPublicSegment(s string) bool {
	switch s {
	case "services", "service", "hooks", "hook", "webhook", "webhooks", "http", "https":
		return true
	}
	return false
}
