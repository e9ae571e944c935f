package slack

import (
	"errors"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/egress"
	"github.com/hubrelay/hubrelay/relay/guard"
)

// Config is what an operator writes for one incoming webhook. Exactly one of URL and URLFile is given.
type Config struct {
	// URL is the address of the incoming webhook. Whoever has it can post, so all of it counts as secret.
	URL string `koanf:"url" secret:"true" doc:"The incoming webhook's address, https://hooks.slack.com/services/…; it is a credential. Exactly one of url and url_file is given."`
	// URLFile holds the address; a file that changes is read again within a second or two.
	URLFile string `koanf:"url_file" doc:"A file that holds the incoming webhook's address, read again when it changes."`
	// AllowCIDRs name the addresses that may be dialled although they are not public.
	AllowCIDRs []string `koanf:"allow_cidrs" doc:"Addresses that may be dialled although they are not public, such as 127.0.0.0/8."`
}

// Validate reports every bad value as a [relay.FieldError], joined. It reads the file, and asks no DNS.
func (c *Config) Validate() error {
	g, err := guard.New(c.AllowCIDRs)
	return errors.Join(err, c.checkAddress(g))
}

// checkAddress reports what is wrong with url and url_file. Without a guard it is not known what may be dialled, and only
// whether there is an address is looked at.
func (c *Config) checkAddress(g *guard.Guard) error {
	switch {
	case c.URL == "" && c.URLFile == "":
		return &relay.FieldError{Field: "url", Problem: "is missing: give the incoming webhook's address here, or in a file that url_file names"}
	case c.URL != "" && c.URLFile != "":
		return &relay.FieldError{Field: "url_file", Problem: "is given beside url: give one of the two"}
	case g == nil:
		return nil
	case c.URL != "":
		if _, err := parseTarget(c.URL, g); err != nil {
			return &relay.FieldError{Field: "url", Problem: err.Error()}
		}
		return nil
	}
	text, err := egress.ReadFile(c.URLFile)
	if err != nil {
		return &relay.FieldError{Field: "url_file", Problem: err.Error()}
	}
	if _, err := parseFile(text, g); err != nil {
		return &relay.FieldError{Field: "url_file", Problem: "names a file whose content " + err.Error()}
	}
	return nil
}

// parseFile reads the address from a file's content. Its errors follow the words "whose content".
func parseFile(text []byte, g *guard.Guard) (*egress.Target, error) {
	url := strings.TrimSpace(string(text))
	switch {
	case url == "":
		return nil, errors.New("is empty")
	case strings.ContainsAny(url, " \t\r\n"):
		return nil, errors.New("is more than one address")
	}
	return parseTarget(url, g)
}

// parseTarget checks the address of an incoming webhook. No error repeats it.
func parseTarget(text string, g *guard.Guard) (*egress.Target, error) {
	t, err := egress.ParseTarget(text, g)
	if err != nil {
		return nil, err
	}
	u := t.URL()
	switch {
	case u.User != nil:
		return nil, errors.New("must not hold a user or password: the secret of an incoming webhook is its path")
	case strings.EqualFold(u.Hostname(), "hooks.slack.com") && (u.Scheme != "https" || !strings.HasPrefix(u.Path, "/services/")):
		return nil, errors.New("is not an incoming webhook of Slack: those begin with https://hooks.slack.com/services/")
	}
	return t, nil
}
