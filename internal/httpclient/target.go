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
	// redacted replaces a secret part of a URL.
	redacted = "(redacted)"
	// minSecretLength is the minimum length of a redacted part. Otherwise a path such as /a would redact every "a".
	minSecretLength = 4
)

// Target is the URL of a destination. Its user, path and query are secret. It is immutable.
type Target struct {
	url     url.URL
	secrets []string
}

// ParseTarget parses an http or https URL and checks its host without using DNS. Its errors are appended to the name of
// a configuration key and contain no part of the URL.
func ParseTarget(text string, g *netguard.Guard) (*Target, error) {
	u, err := url.Parse(text)
	switch {
	case strings.ContainsAny(text, "\r\n"):
		return nil, errors.New("has more than one line: set a single URL")
	case err != nil:
		return nil, errors.New("is not a URL: write https://host/path")
	case strings.Contains(text, " "):
		return nil, errors.New("contains a space: set a single URL, and write %20 for a space in it")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("must begin with https:// or http://")
	case u.Hostname() == "":
		return nil, errors.New("has no host")
	case strings.Contains(text, "#"):
		return nil, errors.New("must not have a fragment (#…): it would never be sent")
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			return nil, errors.New("has a port outside 1 to 65535")
		}
	}
	if err := g.CheckHost(u.Hostname()); err != nil {
		return nil, fmt.Errorf("must not be dialed: %w", err)
	}
	return &Target{url: *u, secrets: secretParts(u)}, nil
}

// URL returns a copy of the URL, including its secret parts.
func (t *Target) URL() *url.URL {
	u := t.url
	return &u
}

// Host returns the host and the port, if any. It is the only part of the URL that may appear in errors and logs.
func (t *Target) Host() string { return t.url.Host }

// Hash returns a short hash of the URL. Equal URLs have equal hashes.
func (t *Target) Hash() string {
	sum := sha256.Sum256([]byte(t.url.String()))
	return hex.EncodeToString(sum[:12])
}

// Redact replaces the secret parts of the URL in text.
func (t *Target) Redact(text string) string { return redact(text, t.secrets) }

func redact(text string, secrets []string) string {
	for _, secret := range secrets {
		text = strings.ReplaceAll(text, secret, redacted)
	}
	return text
}

// redactTail replaces the start of a secret at the end of a truncated text.
func redactTail(text string, secrets []string) string {
	for _, secret := range secrets {
		for n := len(secret) - 1; n >= minSecretLength; n-- {
			if strings.HasSuffix(text, secret[:n]) {
				return text[:len(text)-n] + redacted
			}
		}
	}
	return text
}

// secretParts returns the parts of a URL that may be credentials, longest first.
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

// sortBySize returns parts, longest first, without duplicates and parts shorter than minSecretLength. It adds the
// quoted form of parts that strconv.Quote changes.
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

// isPublicSegment reports whether a segment of a path is a common word of webhook URLs and therefore not secret.
func isPublicSegment(s string) bool {
	switch s {
	case "services", "service", "hooks", "hook", "webhook", "webhooks", "http", "https":
		return true
	}
	return false
}
