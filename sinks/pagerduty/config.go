package pagerduty

import (
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
	RoutingKey     string `koanf:"routing_key" secret:"true" doc:"The integration key of the service (Events API v2), 32 letters and digits. Exactly one of routing_key and routing_key_file is given."`
	RoutingKeyFile string `koanf:"routing_key_file" doc:"A file that holds the integration key, read again when it changes."`
	// Severity is the severity of problems.
	Severity string `koanf:"severity" enum:"critical,error,warning,info" doc:"The severity of what is bad; a health check that turned unhealthy is a warning at most."`
	// The templates are rendered by internal/tmpl. Each is inline or in a file. An empty result uses the default.
	SummaryTemplate       string `koanf:"summary_template" doc:"The summary as a Go template, one line of 1024 characters; docs/templates.md says what it may hold."`
	SummaryTemplateFile   string `koanf:"summary_template_file" doc:"A file that holds the summary_template, read again when it changes."`
	DetailsTemplate       string `koanf:"custom_details_template" doc:"The custom_details as a Go template that makes a JSON object, in place of the notification."`
	DetailsTemplateFile   string `koanf:"custom_details_template_file" doc:"A file that holds the custom_details_template, read again when it changes."`
	SeverityTemplate      string `koanf:"severity_template" doc:"The severity as a Go template that makes critical, error, warning or info; nothing for that of severity."`
	SeverityTemplateFile  string `koanf:"severity_template_file" doc:"A file that holds the severity_template, read again when it changes."`
	ComponentTemplate     string `koanf:"component_template" doc:"The component as a Go template, in place of the containers."`
	ComponentTemplateFile string `koanf:"component_template_file" doc:"A file that holds the component_template, read again when it changes."`
	GroupTemplate         string `koanf:"group_template" doc:"The group as a Go template, in place of the clusters."`
	GroupTemplateFile     string `koanf:"group_template_file" doc:"A file that holds the group_template, read again when it changes."`
	ClassTemplate         string `koanf:"class_template" doc:"The class as a Go template, in place of the topic."`
	ClassTemplateFile     string `koanf:"class_template_file" doc:"A file that holds the class_template, read again when it changes."`
	LinkTemplate          string `koanf:"link_template" doc:"An address that an alert leads to, as a Go template: https://portal.example.com/?hub={{ urlquery .Hub }}; nothing for no link."`
	LinkTemplateFile      string `koanf:"link_template_file" doc:"A file that holds the link_template, read again when it changes."`
	// URL is where events are posted.
	URL string `koanf:"url" doc:"Where events are posted; in Europe https://events.eu.pagerduty.com/v2/enqueue."`
	// AllowCIDRs name the addresses that may be dialled although they are not public.
	AllowCIDRs []string `koanf:"allow_cidrs" doc:"Addresses that may be dialled although they are not public, such as 127.0.0.0/8."`
}

// Validate reports every bad value as a [relay.FieldError], joined. It reads the file, and asks no DNS.
func (c *Config) Validate() error {
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
		bad("severity", "is not known: choose critical, error, warning or info")
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
