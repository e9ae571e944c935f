package webhook

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/hubrelay/hubrelay/internal/httpclient"
	"github.com/hubrelay/hubrelay/relay"
)

// parseHeaders returns the operator's headers by their canonical names. No problem contains a value, because it may be
// a secret.
func (c *Config) parseHeaders() (http.Header, error) {
	h := make(http.Header, len(c.Headers))
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		if !httpclient.IsToken(name) {
			errs = append(errs, &relay.FieldError{
				Field: "headers", Problem: fmt.Sprintf("holds %q, which cannot be the name of a header",
					relay.Truncate(name, 60)),
			})
			continue
		}
		canonical := http.CanonicalHeaderKey(name)
		_, twice := h[canonical]
		if problem := headerProblem(canonical, c.Headers[name], twice); problem != "" {
			errs = append(errs, &relay.FieldError{Field: "headers." + name, Problem: problem})
		}
		h[canonical] = []string{c.Headers[name]}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return h, nil
}

func headerProblem(canonical, value string, twice bool) string {
	if reason := reservedReason(canonical); reason != "" {
		return reason
	}
	if twice {
		return "is given twice, since case does not matter in the names of headers"
	}
	if err := checkValue(value); err != nil {
		return err.Error()
	}
	return ""
}

// reservedReason returns why an operator cannot set a header, or an empty string.
func reservedReason(canonical string) string {
	switch canonical {
	case "Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return "belongs to the connection and cannot be set"
	case "Host", "Content-Length", "Content-Encoding", "Expect":
		return "follows from the url and the body and cannot be set"
	}
	switch {
	case strings.HasPrefix(canonical, "Proxy-"):
		return "belongs to the connection and cannot be set; put user and password of a proxy into its URL"
	case strings.HasPrefix(canonical, "Webhook-"):
		return "belongs to Standard Webhooks and is set by the relay"
	}
	return ""
}

func checkValue(s string) error {
	for _, c := range []byte(s) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return errors.New("holds a line break or another control character, which no header can carry")
		}
	}
	if strings.TrimSpace(s) != s {
		return errors.New("begins or ends with white space")
	}
	return nil
}

// parseBearer checks a bearer token. Its errors do not repeat it.
func parseBearer(text []byte) (string, error) {
	s := strings.TrimSpace(string(text))
	if s == "" {
		return "", errors.New("holds no token")
	}
	for _, c := range []byte(s) {
		if c <= ' ' || c >= 0x7f {
			return "", errors.New("holds white space or other characters that a token cannot have")
		}
	}
	return s, nil
}

func (c *Config) bearerSetting() httpclient.Setting[string] {
	return httpclient.Setting[string]{Key: "bearer", Text: c.Bearer, File: c.BearerFile, Parse: parseBearer}
}

// checkAuthorization reports what is wrong with headers, bearer and bearer_file.
func (c *Config) checkAuthorization() error {
	_, headers := c.parseHeaders()
	_, several := c.authorizationKey()
	return errors.Join(headers, several, c.bearerSetting().Check())
}

// authorizationKey says by which key the header Authorization is given, and objects to several.
func (c *Config) authorizationKey() (string, error) {
	key := ""
	for name := range c.Headers {
		if strings.EqualFold(name, "Authorization") {
			key = "headers." + name
		}
	}
	for _, other := range []struct {
		key   string
		given bool
	}{{"bearer", c.Bearer != ""}, {"bearer_file", c.Bearer == "" && c.BearerFile != ""}, {"oauth2", c.OAuth2.isSet()}} {
		switch {
		case !other.given:
		case key != "":
			return "", &relay.FieldError{
				Field: other.key, Problem: "is given beside " + key +
					": give one of them, since both make the header Authorization",
			}
		default:
			key = other.key
		}
	}
	return key, nil
}
