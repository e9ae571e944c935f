package webhook

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/guard"
)

const (
	secretPrefix = "whsec_"
	// The bounds are those of Standard Webhooks: 192 to 512 bits.
	minSecret = 24
	maxSecret = 64
)

// Config is what an operator writes for one webhook.
type Config struct {
	// URL is where notifications are posted: http or https. Its user, path and query count as secret.
	URL string `koanf:"url" doc:"Where notifications are posted: https:// or http://."`
	// Secrets sign every request, each with a signature of its own, so that a receiver can change over. A secret is
	// "whsec_" and 24 to 64 bytes in base64. Without any, requests are not signed.
	Secrets []string `koanf:"secrets" secret:"true" doc:"Secrets (whsec_…) that sign every request, one signature each; make one with hubrelay keys new --webhook."`
	// SecretFiles hold further secrets, one on a line; a file that changes is read again within a second or two.
	SecretFiles []string `koanf:"secret_files" doc:"Files with further secrets, one on a line, read again when they change."`
	// AllowCIDRs name the addresses that may be dialled although they are not public.
	AllowCIDRs []string `koanf:"allow_cidrs" doc:"Addresses that may be dialled although they are not public, such as 127.0.0.0/8."`
}

// Validate reports the first bad value as a [relay.FieldError]. It reads the secret files, and asks no DNS.
func (c *Config) Validate() error {
	g, err := c.guard()
	if err != nil {
		return err
	}
	if _, err := c.target(g); err != nil {
		return err
	}
	for i, s := range c.Secrets {
		if _, err := parseSecret(s); err != nil {
			return &relay.FieldError{Field: index("secrets", i), Problem: err.Error()}
		}
	}
	for i, name := range c.SecretFiles {
		if _, err := readSecretFile(name); err != nil {
			return &relay.FieldError{Field: index("secret_files", i), Problem: err.Error()}
		}
	}
	return nil
}

func index(field string, i int) string { return field + "." + strconv.Itoa(i) }

func (c *Config) guard() (*guard.Guard, error) {
	for i, s := range c.AllowCIDRs {
		if _, err := guard.ParseCIDR(s); err != nil {
			return nil, &relay.FieldError{Field: index("allow_cidrs", i), Problem: "is not usable: " + err.Error()}
		}
	}
	return guard.New(c.AllowCIDRs)
}

// target returns the parsed URL. No problem repeats the URL, since it may hold a secret.
func (c *Config) target(g *guard.Guard) (*url.URL, error) {
	bad := func(problem string) error { return &relay.FieldError{Field: "url", Problem: problem} }
	if c.URL == "" {
		return nil, bad("is missing: give the address that notifications are posted to, like https://example.com/hook")
	}
	u, err := url.Parse(c.URL)
	switch {
	case err != nil:
		return nil, bad("is not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, bad("must begin with https:// or http://")
	case u.Hostname() == "":
		return nil, bad("names no host")
	case u.Fragment != "" || strings.Contains(c.URL, "#"):
		return nil, bad("must not have a fragment (#…): it would never be sent")
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			return nil, bad("has a port outside 1 to 65535")
		}
	}
	if err := g.CheckHost(u.Hostname()); err != nil {
		return nil, bad("cannot be dialled: " + err.Error())
	}
	return u, nil
}

// parseSecret returns the bytes of a secret. Its errors do not repeat it.
func parseSecret(s string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(strings.TrimSpace(s), secretPrefix)
	if !ok {
		return nil, errors.New("must begin with whsec_ and go on with 24 to 64 bytes in base64")
	}
	key, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		key, err = base64.RawStdEncoding.DecodeString(encoded)
	}
	if err != nil {
		return nil, errors.New("is not base64 behind whsec_")
	}
	if len(key) < minSecret || len(key) > maxSecret {
		return nil, fmt.Errorf("holds %d bytes behind whsec_; %d to %d are allowed", len(key), minSecret, maxSecret)
	}
	return key, nil
}

func readSecretFile(name string) ([][]byte, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	var keys [][]byte
	for i, line := range strings.Split(string(text), "\n") {
		if strings.TrimSpace(line) == "" {
			continue
		}
		key, err := parseSecret(line)
		if err != nil {
			return nil, fmt.Errorf("names a file whose line %d %w", i+1, err)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.New("names a file that holds no secret")
	}
	return keys, nil
}
