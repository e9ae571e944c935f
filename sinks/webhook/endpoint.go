package webhook

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/hubrelay/hubrelay/internal/httpclient"
	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/relay"
)

// endpoint is the destination of requests. It is immutable.
type endpoint struct {
	*httpclient.Target
	// url is the address without user and password.
	url *url.URL
	// basic is the header Authorization with user and password, or empty.
	basic string
}

// parseEndpoint checks a URL together with the rest of the configuration. Its errors follow the name of a key and
// contain no part of the URL.
func (c *Config) parseEndpoint(text string, g *netguard.Guard) (*endpoint, error) {
	t, err := httpclient.ParseTarget(text, g)
	if err != nil {
		return nil, err
	}
	e := &endpoint{Target: t, url: t.URL()}
	if user := e.url.User; user != nil {
		password, _ := user.Password()
		e.basic = "Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password))
		e.url.User = nil
		other, err := c.authorizationKey()
		if err != nil {
			return nil, err
		}
		if other != "" {
			return nil, fmt.Errorf(
				"contains a user and conflicts with %s: remove one, because both set the header Authorization", other,
			)
		}
	}
	if e.url.Scheme == "http" && c.TLS != (TLS{}) {
		return nil, errors.New("starts with http://, so tls has no effect: use https://, or remove tls")
	}
	return e, nil
}

// urlSetting returns the destination of requests. Without a guard, every address is allowed.
func (c *Config) urlSetting(g *netguard.Guard) httpclient.Setting[*endpoint] {
	return httpclient.Setting[*endpoint]{
		Key: "url", Text: c.URL, File: c.URLFile,
		Parse: func(text []byte) (*endpoint, error) {
			if g == nil {
				return nil, nil
			}
			return c.parseEndpoint(strings.TrimSpace(string(text)), g)
		},
	}
}

// checkEndpoint returns the problems of url and url_file.
func (c *Config) checkEndpoint(g *netguard.Guard) error {
	address := c.urlSetting(g)
	if !address.IsSet() {
		return &relay.FieldError{
			Field: "url", Problem: "is missing: set the URL to post events to, such as " +
				"https://example.com/hook, here or in url_file",
		}
	}
	return address.Check()
}
