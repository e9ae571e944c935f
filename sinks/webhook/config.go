package webhook

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/internal/httpclient"
	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/relay"
)

// Config is the configuration of one webhook.
type Config struct {
	// URL is where notifications are posted: http or https. Its user, path and query count as secret.
	URL string `koanf:"url" secret:"url" doc:"Destination, https:// or http://. Exactly one of url and url_file."`
	// URLFile holds the URL; a file that changes is read again within a second or two.
	URLFile string `koanf:"url_file" doc:"A file that holds the url, read again when it changes."`
	// Format is the form of the body: "notification" or empty for the notification as clients see it, "standard" for
	// {"type", "timestamp", "data"} as Standard Webhooks recommends, "template" for the output of Template,
	// "cloudevents-structured" and "cloudevents-binary" for CloudEvents 1.0.
	Format string `koanf:"format" enum:"notification,standard,template,cloudevents-structured,cloudevents-binary" doc:"Body."`
	// Template and TemplateFile give the body of format template, exactly one of them.
	Template     string `koanf:"template" doc:"Body as a Go template (docs/templates.md)."`
	TemplateFile string `koanf:"template_file" doc:"A file that holds the template, read again when it changes."`
	// ContentType is that of the template's body; empty for application/json.
	ContentType string `koanf:"content_type" doc:"Media type of the template; empty for application/json."`
	// CloudEvents is for their formats alone.
	CloudEvents CloudEvents `koanf:"cloudevents" doc:"What CloudEvents are called, where format makes them."`
	// Secrets sign every request, each with its own signature, so a receiver can change secrets. A secret is "whsec_"
	// and 24 to 64 bytes in base64. Without secrets, requests are not signed.
	Secrets []string `koanf:"secrets" secret:"true" doc:"Secrets (whsec_…, whsk_…) that sign every request."`
	// SecretFiles hold further secrets, one on a line; a file that changes is read again within a second or two.
	SecretFiles []string `koanf:"secret_files" doc:"Files with more secrets, one per line."`
	// Headers are sent with every request. Each value may be a secret.
	Headers map[string]string `koanf:"headers" secret:"true" doc:"Additional headers; values are never shown."`
	// Bearer and BearerFile set the header Authorization. At most one is set, and neither with a user in the URL.
	Bearer     string `koanf:"bearer" secret:"true" doc:"A token that is sent as Authorization: Bearer …."`
	BearerFile string `koanf:"bearer_file" doc:"A file that holds the bearer token, read again when it changes."`
	// OAuth2 gives the bearer token by client credentials.
	OAuth2 OAuth2 `koanf:"oauth2" doc:"Gets the bearer token by OAuth2 client credentials."`
	// Compression is of bodies.
	Compression Compression `koanf:"compression" doc:"Compresses bodies by gzip."`
	// TLS is for https URLs alone.
	TLS TLS `koanf:"tls" doc:"Client certificate and authorities for an https url."`
	// Proxy receives the address of the target, after it was checked. Proxies in the environment are ignored.
	Proxy string `koanf:"proxy" secret:"url" doc:"Proxy: http://, https:// or socks5://. The environment is ignored."`
	// AllowCIDRs name the addresses that may be dialed although they are not public.
	AllowCIDRs []string `koanf:"allow_cidrs" doc:"Non-public addresses that may be dialed."`
}

// Check implements [relay.Config].
func (c *Config) Check(ctx context.Context, env relay.CheckEnv) relay.Report {
	err := c.validate()
	if err != nil {
		return relay.NewReport(err)
	}
	if env.Batch {
		err = c.checkBatch()
	}
	if env.Samples != nil {
		err = errors.Join(err, c.validateSamples(ctx, env.Name, env.Samples()))
	}
	return relay.NewReport(err, c.listWarnings()...)
}

// validate reports every bad value as a [relay.FieldError], joined. It reads the files, and asks no DNS.
func (c *Config) validate() error {
	g, err := netguard.New(c.AllowCIDRs)
	errs := []error{err, c.checkEndpoint(g)}
	errs = append(errs, c.checkFormat(), c.OAuth2.validate(g))
	if field, problem := c.Compression.validate(); problem != "" {
		errs = append(errs, &relay.FieldError{Field: "compression." + field, Problem: problem})
	}
	_, proxy := c.parsedProxy()
	errs = append(errs, c.checkAuthorization(), c.TLS.validate(), proxy, c.checkTemplate())
	for i, s := range c.Secrets {
		if _, err := parseSigner(s); err != nil {
			errs = append(errs, &relay.FieldError{Field: indexedField("secrets", i), Problem: err.Error()})
		}
	}
	for i, name := range c.SecretFiles {
		text, err := httpclient.ReadFile(name)
		if err == nil {
			_, err = parseSigners(text)
		}
		if err != nil {
			errs = append(errs, &relay.FieldError{Field: indexedField("secret_files", i), Problem: err.Error()})
		}
	}
	return errors.Join(errs...)
}

// checkFormat reports problems of format and of the settings for single formats.
func (c *Config) checkFormat() error {
	switch f := c.Format; {
	case isCloudEvents(f):
		if field, problem := c.CloudEvents.validate(); problem != "" {
			return &relay.FieldError{Field: "cloudevents." + field, Problem: problem}
		}
		for name := range c.Headers {
			lower := strings.ToLower(name)
			if lower == "content-type" || strings.HasPrefix(lower, "ce-") {
				return &relay.FieldError{
					Field:   "headers." + name,
					Problem: "follows from the format, which is of CloudEvents, and cannot be set",
				}
			}
		}
	case f != "" && f != formatNotification && f != formatStandard && f != formatTemplate:
		return &relay.FieldError{
			Field: "format", Problem: "is not known: choose notification, standard, template, " +
				"cloudevents-structured or cloudevents-binary",
		}
	case c.CloudEvents != (CloudEvents{}):
		return &relay.FieldError{
			Field: "cloudevents",
			Problem: "has no effect without a format of CloudEvents: set format: cloudevents-structured, or " +
				"leave it out",
		}
	}
	return nil
}

// checkBatch refuses the one format that cannot hold several notifications.
func (c *Config) checkBatch() error {
	if c.Format == formatBinary {
		return &relay.FieldError{
			Field: "format", Problem: "cannot hold a batch, for which CloudEvents have no binary mode: choose " +
				"cloudevents-structured, or leave batch out",
		}
	}
	return nil
}

// listWarnings reports that requests are not signed if there is no secret.
func (c *Config) listWarnings() []relay.FieldError {
	if len(c.Secrets)+len(c.SecretFiles) > 0 {
		return nil
	}
	return []relay.FieldError{{
		Field: "secrets", Problem: "is empty, so requests are not signed and receivers cannot tell who sent them",
	}}
}

func indexedField(field string, i int) string { return field + "." + strconv.Itoa(i) }
