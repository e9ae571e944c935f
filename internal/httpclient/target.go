package httpclient

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/internal/redact"
)

// Target is the URL of a destination. Its user, path and query are secret. It is immutable.
type Target struct {
	url     url.URL
	secrets redact.Secrets // parts of the URL
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
		return nil, fmt.Errorf("is not allowed: %w", err)
	}
	return &Target{url: *u, secrets: redact.New(secretParts(u)...)}, nil
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

// Secrets returns the secret parts of the URL.
func (t *Target) Secrets() redact.Secrets { return t.secrets }

// SecretsOfURL returns the parts of a URL that may be credentials, which its server may repeat. An invalid URL has none.
func SecretsOfURL(text string) redact.Secrets {
	u, err := url.Parse(text)
	if err != nil {
		return redact.Secrets{}
	}
	return redact.New(secretParts(u)...)
}

// secretParts returns the parts of a URL that may be credentials.
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
	return parts
}

// isPublicSegment reports whether a segment of a path is a common word of webhook URLs and therefore not secret.
func isPublicSegment(s string) bool {
	switch s {
	case "services", "service", "hooks", "hook", "webhook", "webhooks", "http", "https":
		return true
	}
	return false
}
