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

// parseHeaders returns the configured headers by their canonical names. Problems do not contain values, because these
// may be secrets.
func (c *Config) parseHeaders() (http.Header, error) {
	h := make(http.Header, len(c.Headers))
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		if !httpclient.IsToken(name) {
			errs = append(errs, &relay.FieldError{
				Field: "headers", Problem: fmt.Sprintf("contains a name that begins with %q and is not a valid header name",
					relay.Truncate(validPrefix(name), 60)),
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

// validPrefix returns the part of a name before a character that is invalid in header names. The rest may be a value.
func validPrefix(name string) string {
	for i := range name {
		if !httpclient.IsToken(name[:i+1]) {
			return name[:i]
		}
	}
	return name
}

func headerProblem(canonical, value string, twice bool) string {
	if reason := reservedReason(canonical); reason != "" {
		return reason
	}
	if twice {
		return "is set twice, because header names are not case-sensitive"
	}
	if err := checkValue(value); err != nil {
		return err.Error()
	}
	return ""
}

// reservedReason returns why a header cannot be configured, or an empty string.
func reservedReason(canonical string) string {
	switch canonical {
	case "Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return "belongs to the connection and cannot be configured"
	case "Host", "Content-Length", "Content-Encoding", "Expect":
		return "follows from the URL and the body and cannot be configured"
	}
	switch {
	case strings.HasPrefix(canonical, "Proxy-"):
		return "belongs to the connection and cannot be configured; put user and password of a proxy into its URL"
	case strings.HasPrefix(canonical, "Webhook-"):
		return "belongs to Standard Webhooks and is set by the relay"
	}
	return ""
}

func checkValue(s string) error {
	for _, c := range []byte(s) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return errors.New("contains a line break or another control character, which a header cannot contain")
		}
	}
	if strings.TrimSpace(s) != s {
		return errors.New("starts or ends with white space")
	}
	return nil
}

// maxTokenBytes is the maximum length of a bearer token. Servers accept headers of 8 to 32 KiB, and the redaction of errors
// needs memory in proportion to the token.
const maxTokenBytes = 16 << 10

// parseBearer checks a bearer token. Its errors do not contain it.
func parseBearer(text []byte) (string, error) {
	s := strings.TrimSpace(string(text))
	if s == "" {
		return "", errors.New("contains no token")
	}
	if len(s) > maxTokenBytes {
		return "", fmt.Errorf("contains %d bytes; a token has at most %d", len(s), maxTokenBytes)
	}
	for _, c := range []byte(s) {
		if c <= ' ' || c >= 0x7f {
			return "", errors.New("contains white space or other characters that a token cannot contain")
		}
	}
	return s, nil
}

func (c *Config) bearerSetting() httpclient.Setting[string] {
	return httpclient.Setting[string]{Key: "bearer", Text: c.Bearer, File: c.BearerFile, Parse: parseBearer}
}

// checkAuthorization returns the problems of headers, bearer and bearer_file.
func (c *Config) checkAuthorization() error {
	_, headers := c.parseHeaders()
	_, several := c.authorizationKey()
	return errors.Join(headers, several, c.bearerSetting().Check())
}

// authorizationKey returns the key that sets the header Authorization, and a problem for each additional one.
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
				Field: other.key, Problem: "conflicts with " + key +
					": remove one of them, because both set the header Authorization",
			}
		default:
			key = other.key
		}
	}
	return key, nil
}
