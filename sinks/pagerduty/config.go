package pagerduty

import (
	"context"
	"errors"
	"strings"

	"github.com/hubrelay/hubrelay/internal/httpclient"
	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/relay"
)

// endpoint is the address in PagerDuty's documentation. Accounts in Europe use
// https://events.eu.pagerduty.com/v2/enqueue.
const endpoint = "https://events.pagerduty.com/v2/enqueue"

// Config is the configuration of one PagerDuty service. Exactly one of RoutingKey and RoutingKeyFile is set.
type Config struct {
	RoutingKey     string `koanf:"routing_key" secret:"true" doc:"Integration key, 32 letters and digits."`
	RoutingKeyFile string `koanf:"routing_key_file" doc:"File with the routing_key, read again when it changes."`
	// Severity is the severity of problems.
	Severity string `koanf:"severity" enum:"critical,error,warning,info" doc:"Severity of problems."`
	// The templates are rendered by internal/tmpl. Each is inline or in a file. An empty result uses the default.
	SummaryTemplate       string `koanf:"summary_template" doc:"Summary as a Go template, one line."`
	SummaryTemplateFile   string `koanf:"summary_template_file" doc:"File with the summary_template."`
	DetailsTemplate       string `koanf:"custom_details_template" doc:"Details as a Go template (a JSON object)."`
	DetailsTemplateFile   string `koanf:"custom_details_template_file" doc:"File with the custom_details_template."`
	SeverityTemplate      string `koanf:"severity_template" doc:"Severity as a Go template."`
	SeverityTemplateFile  string `koanf:"severity_template_file" doc:"File with the severity_template."`
	ComponentTemplate     string `koanf:"component_template" doc:"Component as a Go template."`
	ComponentTemplateFile string `koanf:"component_template_file" doc:"File with the component_template."`
	GroupTemplate         string `koanf:"group_template" doc:"Group as a Go template."`
	GroupTemplateFile     string `koanf:"group_template_file" doc:"File with the group_template."`
	ClassTemplate         string `koanf:"class_template" doc:"Class as a Go template."`
	ClassTemplateFile     string `koanf:"class_template_file" doc:"File with the class_template."`
	LinkTemplate          string `koanf:"link_template" doc:"URL of an alert as a Go template."`
	LinkTemplateFile      string `koanf:"link_template_file" doc:"File with the link_template."`
	// URL is where events are posted.
	URL string `koanf:"url" doc:"Where events are posted; in Europe https://events.eu.pagerduty.com/v2/enqueue."`
	// AllowCIDRs are networks that may be dialed although they are not public.
	AllowCIDRs []string `koanf:"allow_cidrs" doc:"Networks that may be dialed although they are not public."`
}

// Check implements [relay.Config].
func (c *Config) Check(ctx context.Context, env relay.CheckEnv) relay.Report {
	err := c.validate()
	if err == nil && env.Samples != nil {
		err = c.validateSamples(ctx, env.Name, env.Samples())
	}
	return relay.NewReport(err)
}

// validate joins a [relay.FieldError] for each invalid value. It reads the file, but does not query DNS.
func (c *Config) validate() error {
	var errs []error
	bad := func(field, problem string) { errs = append(errs, &relay.FieldError{Field: field, Problem: problem}) }
	g, err := netguard.New(c.AllowCIDRs)
	errs = append(errs, err)
	if g != nil {
		if _, err := httpclient.ParseTarget(c.URL, g); err != nil {
			bad("url", err.Error())
		}
	}
	if !c.keySetting().IsSet() {
		bad(
			"routing_key", "is missing: give the integration key of the service here, or in a file that "+
				"routing_key_file names",
		)
	}
	errs = append(errs, c.keySetting().Check())
	if !isSeverity(c.Severity) {
		bad("severity", "is unknown: choose critical, error, warning or info")
	}
	return errors.Join(append(errs, c.templates().Check())...)
}

func isSeverity(text string) bool {
	return text == "critical" || text == "error" || text == "warning" || text == "info"
}

func (c *Config) keySetting() httpclient.Setting[string] {
	return httpclient.Setting[string]{Key: "routing_key", Text: c.RoutingKey, File: c.RoutingKeyFile, Parse: parseKey}
}

// parseKey checks an integration key. Its errors do not repeat it.
func parseKey(text []byte) (string, error) {
	key := strings.TrimSpace(string(text))
	if len(key) != 32 {
		return "", errors.New("is not an integration key: those have 32 letters and digits")
	}
	for _, r := range key {
		if (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') {
			return "", errors.New("is not an integration key: those have letters and digits alone")
		}
	}
	return key, nil
}
