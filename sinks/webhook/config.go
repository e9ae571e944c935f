package webhook

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/egress"
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
	URL string `koanf:"url" secret:"url" doc:"Where notifications are posted: https:// or http://. Exactly one of url and url_file is given."`
	// URLFile holds the URL; a file that changes is read again within a second or two.
	URLFile string `koanf:"url_file" doc:"A file that holds the url, read again when it changes."`
	// Format is the form of the body: "notification" or empty for the notification as clients see it, "standard" for
	// {"type", "timestamp", "data"} as Standard Webhooks recommends, "template" for what Template renders.
	Format string `koanf:"format" enum:"notification,standard,template" doc:"The body: the notification as it is; standard: {type, timestamp, data} as Standard Webhooks recommends; template: what template renders."`
	// Template and TemplateFile give the body of format template, exactly one of them.
	Template     string `koanf:"template" doc:"The body as a Go template, for format: template; docs/templates.md says what it may hold."`
	TemplateFile string `koanf:"template_file" doc:"A file that holds the template, read again when it changes."`
	// ContentType is that of the template's body; empty for application/json.
	ContentType string `koanf:"content_type" doc:"What the template renders, such as text/plain; empty for application/json, which is then checked to be JSON."`
	// Secrets sign every request, each with a signature of its own, so that a receiver can change over. A secret is
	// "whsec_" and 24 to 64 bytes in base64. Without any, requests are not signed.
	Secrets []string `koanf:"secrets" secret:"true" doc:"Secrets (whsec_…) that sign every request, one signature each; make one with hubrelay keys new --webhook."`
	// SecretFiles hold further secrets, one on a line; a file that changes is read again within a second or two.
	SecretFiles []string `koanf:"secret_files" doc:"Files with further secrets, one on a line, read again when they change."`
	// Headers are sent with every request. Each value may be a secret.
	Headers map[string]string `koanf:"headers" secret:"true" doc:"Further headers of every request; their values are never shown."`
	// Bearer and BearerFile give the header Authorization, at most one of them and none beside a user in the URL.
	Bearer     string `koanf:"bearer" secret:"true" doc:"A token that is sent as Authorization: Bearer …."`
	BearerFile string `koanf:"bearer_file" doc:"A file that holds the bearer token, read again when it changes."`
	// TLS is for https URLs alone.
	TLS TLS `koanf:"tls" doc:"Client certificate and authorities for an https url."`
	// Proxy is asked for the target's address, once that was judged. No proxy is ever taken from the environment.
	Proxy string `koanf:"proxy" secret:"url" doc:"A proxy to go through: http://, https:// or socks5://. It is asked for the target's address, not its name; the environment names none."`
	// AllowCIDRs name the addresses that may be dialled although they are not public.
	AllowCIDRs []string `koanf:"allow_cidrs" doc:"Addresses that may be dialled although they are not public, such as 127.0.0.0/8."`
}

// Validate reports every bad value as a [relay.FieldError], joined. It reads the files, and asks no DNS.
func (c *Config) Validate() error {
	g, err := guard.New(c.AllowCIDRs)
	errs := []error{err, c.checkEndpoint(g)}
	if f := c.Format; f != "" && f != formatNotification && f != formatStandard && f != formatTemplate {
		errs = append(errs, &relay.FieldError{Field: "format", Problem: "is not known: choose notification, standard or template"})
	}
	_, proxy := c.parsedProxy()
	errs = append(errs, c.checkAuthorization(), c.TLS.validate(), proxy, c.checkTemplate())
	for i, s := range c.Secrets {
		if _, err := parseSecret(s); err != nil {
			errs = append(errs, &relay.FieldError{Field: index("secrets", i), Problem: err.Error()})
		}
	}
	for i, name := range c.SecretFiles {
		text, err := egress.ReadFile(name)
		if err == nil {
			_, err = parseSecrets(text)
		}
		if err != nil {
			errs = append(errs, &relay.FieldError{Field: index("secret_files", i), Problem: err.Error()})
		}
	}
	return errors.Join(errs...)
}

// Warnings says that requests go unsigned where there is no secret.
func (c *Config) Warnings() []relay.FieldError {
	if len(c.Secrets)+len(c.SecretFiles) > 0 {
		return nil
	}
	return []relay.FieldError{{
		Field: "secrets", Problem: "is empty, so requests are not signed and receivers cannot tell who sent them",
	}}
}

func index(field string, i int) string { return field + "." + strconv.Itoa(i) }

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

// parseSecrets reads what a secret file holds: one secret on a line.
func parseSecrets(text []byte) ([][]byte, error) {
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
