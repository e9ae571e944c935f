package webhook

import (
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/egress"
	"github.com/hubrelay/hubrelay/relay/guard"
)

// endpoint is where requests go. It is immutable.
type endpoint struct {
	*egress.Target
	// url is the address without user and password.
	url *url.URL
	// basic is the header Authorization that follows from those, or empty.
	basic string
}

// parseEndpoint checks a URL against the rest of the configuration. Its errors follow the name of a key and repeat
// nothing of the URL.
func (c *Config) parseEndpoint(text string, g *guard.Guard) (*endpoint, error) {
	t, err := egress.ParseTarget(text, g)
	if err != nil {
		return nil, err
	}
	e := &endpoint{Target: t, url: t.URL()}
	if user := e.url.User; user != nil {
		password, _ := user.Password()
		e.basic = "Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password))
		e.url.User = nil
		other, err := c.authorization()
		if err != nil {
			return nil, err
		}
		if other != "" {
			return nil, fmt.Errorf("holds a user, and %s is given too: give one of them, since both make the header Authorization", other)
		}
	}
	if e.url.Scheme == "http" && c.TLS != (TLS{}) {
		return nil, errors.New("begins with http://, where tls says nothing: write https://, or leave tls out")
	}
	return e, nil
}

// parseEndpointFile reads the URL from a file's content.
func (c *Config) parseEndpointFile(text []byte, g *guard.Guard) (*endpoint, error) {
	s := strings.TrimSpace(string(text))
	switch {
	case s == "":
		return nil, errors.New("names a file that is empty")
	case strings.ContainsAny(s, " \t\r\n"):
		return nil, errors.New("names a file that holds more than one address")
	}
	e, err := c.parseEndpoint(s, g)
	if err != nil {
		return nil, fmt.Errorf("names a file whose address %w", err)
	}
	return e, nil
}

// checkEndpoint reports what is wrong with url and url_file. Without a guard it is not known what may be dialled, and only
// whether there is an address is looked at.
func (c *Config) checkEndpoint(g *guard.Guard) error {
	switch {
	case c.URL == "" && c.URLFile == "":
		return &relay.FieldError{Field: "url", Problem: "is missing: give the address that notifications are posted to, like https://example.com/hook, or a file that holds it as url_file"}
	case c.URL != "" && c.URLFile != "":
		return &relay.FieldError{Field: "url_file", Problem: "is given beside url: give one of the two"}
	case g == nil:
		return nil
	case c.URL != "":
		if _, err := c.parseEndpoint(c.URL, g); err != nil {
			return &relay.FieldError{Field: "url", Problem: err.Error()}
		}
		return nil
	}
	text, err := egress.ReadFile(c.URLFile)
	if err == nil {
		_, err = c.parseEndpointFile(text, g)
	}
	if err != nil {
		return &relay.FieldError{Field: "url_file", Problem: err.Error()}
	}
	return nil
}

// follow returns a function that gives the present value of a setting: text as parsed, or what the file holds now.
func follow[T any](text, file string, parse func([]byte) (T, error), log *slog.Logger) (func() T, error) {
	if file != "" {
		f, err := egress.Follow(file, parse, log, time.Now)
		if err != nil {
			return nil, err
		}
		return f.Current, nil
	}
	value, err := parse([]byte(text))
	if err != nil {
		return nil, err
	}
	return func() T { return value }, nil
}
