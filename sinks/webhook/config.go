package webhook

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/internal/filewatch"
	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/relay"
)

// Config is the configuration of one webhook.
type Config struct {
	// URL is the destination, http or https. Its user, path and query are treated as secret.
	URL string `koanf:"url" secret:"url" doc:"Destination, https:// or http://. Exactly one of url and url_file."`
	// URLFile contains the URL. It is read again within two seconds after it changes.
	URLFile string `koanf:"url_file" doc:"File with the url, read again when it changes."`
	// Format is the form of the body: "notification" or empty for the notification as clients see it, "standard" for
	// {"type", "timestamp", "data"} as Standard Webhooks recommends, "template" for the output of Template,
	// "cloudevents-structured" and "cloudevents-binary" for CloudEvents 1.0.
	Format string `koanf:"format" enum:"notification,standard,template,cloudevents-structured,cloudevents-binary" doc:"Body."`
	// Metadata adds the members "id" and "time" to each notification, in the formats notification and standard: always
	// ("true"), never ("false"), or only in batches, where webhook-id does not identify a notification ("batches").
	Metadata string `koanf:"metadata" enum:"batches,true,false" doc:"Add the members id and time to each event."`
	// Template or TemplateFile is the body for the format template.
	Template     string `koanf:"template" doc:"Body as a Go template (docs/templates.md)."`
	TemplateFile string `koanf:"template_file" doc:"File with the template, read again when it changes."`
	// ContentType is the media type of the template. The default is application/json.
	ContentType string `koanf:"content_type" doc:"Media type of the template; empty for application/json."`
	// CloudEvents applies to the formats for CloudEvents.
	CloudEvents CloudEvents `koanf:"cloudevents" doc:"Attributes of CloudEvents, for their formats."`
	// Secrets sign every request, each with its own signature, so a receiver can change secrets. A secret is "whsec_"
	// and 24 to 64 bytes in base64. Without secrets, requests are not signed.
	Secrets []string `koanf:"secrets" secret:"true" doc:"Secrets (whsec_…, whsk_…) that sign every request."`
	// SecretFiles contain more secrets, one per line. They are read again within two seconds after a change.
	SecretFiles []string `koanf:"secret_files" doc:"Files with more secrets, one per line."`
	// Headers are sent with every request. Each value may be a secret.
	Headers map[string]string `koanf:"headers" secret:"true" doc:"Additional headers; values are never shown."`
	// Bearer and BearerFile set the header Authorization. At most one is set, and neither with a user in the URL.
	Bearer     string `koanf:"bearer" secret:"true" doc:"Token for the header Authorization: Bearer …."`
	BearerFile string `koanf:"bearer_file" doc:"File with the bearer token, read again when it changes."`
	// OAuth2 gets the bearer token with client credentials.
	OAuth2 OAuth2 `koanf:"oauth2" doc:"Get the bearer token with OAuth2 client credentials."`
	// Compression compresses bodies.
	Compression Compression `koanf:"compression" doc:"Compress bodies with gzip."`
	// TLS applies to https URLs.
	TLS TLS `koanf:"tls" doc:"Client certificate and authorities for an https url."`
	// Proxy receives the address of the target, after it was checked. Proxies in the environment are ignored.
	Proxy string `koanf:"proxy" secret:"url" doc:"Proxy: http://, https:// or socks5://. The environment is ignored."`
	// AllowCIDRs are networks that may be dialed although they are not public.
	AllowCIDRs []string `koanf:"allow_cidrs" doc:"Networks that may be dialed although they are not public."`
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
	if env.Samples != nil && c.Format == formatTemplate { // samples are expensive
		err = errors.Join(err, c.templateSource().ValidateSamples(ctx, env.Name, env.Samples()))
	}
	return relay.NewReport(err, c.listWarnings()...)
}

// validate joins a [relay.FieldError] for each invalid value. It reads files, but does not query DNS.
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
		text, err := filewatch.ReadFile(name)
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
		if c.Metadata == metadataAlways {
			return &relay.FieldError{Field: "metadata", Problem: "has no effect on CloudEvents, which have id and time"}
		}
		for name := range c.Headers {
			lower := strings.ToLower(name)
			if lower == "content-type" || strings.HasPrefix(lower, "ce-") {
				return &relay.FieldError{
					Field:   "headers." + name,
					Problem: "is set by the CloudEvents format and cannot be configured",
				}
			}
		}
	case f != "" && f != formatNotification && f != formatStandard && f != formatTemplate:
		return &relay.FieldError{
			Field: "format", Problem: "is unknown: choose notification, standard, template, " +
				"cloudevents-structured or cloudevents-binary",
		}
	case c.Metadata == metadataAlways && f == formatTemplate:
		return &relay.FieldError{
			Field: "metadata", Problem: "has no effect on a template: write {{ .ID }} and {{ .Time }} into it",
		}
	case c.CloudEvents != (CloudEvents{}):
		return &relay.FieldError{
			Field: "cloudevents",
			Problem: "has no effect without a CloudEvents format: set format: cloudevents-structured, or " +
				"remove it",
		}
	}
	return nil
}

// checkBatch rejects the only format that does not support several notifications.
func (c *Config) checkBatch() error {
	if c.Format == formatBinary {
		return &relay.FieldError{
			Field: "format", Problem: "does not support batches, which have no binary mode: choose " +
				"cloudevents-structured, or remove batch",
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
		Field: "secrets", Problem: "is empty, so requests are not signed and receivers cannot verify the sender",
	}}
}

func indexedField(field string, i int) string { return field + "." + strconv.Itoa(i) }
