package pagerduty

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/hubrelay/hubrelay/internal/message"
	"github.com/hubrelay/hubrelay/internal/tmpl"
	"github.com/hubrelay/hubrelay/relay"
)

// The settings that are templates.
const (
	summaryKey   = "summary_template"
	detailsKey   = "custom_details_template"
	severityKey  = "severity_template"
	componentKey = "component_template"
	groupKey     = "group_template"
	classKey     = "class_template"
	linkKey      = "link_template"
)

func (c *Config) templates() tmpl.Sources {
	// A URL must not contain invisible characters. Other results are cleaned after rendering.
	visible := tmpl.Options{Clean: message.StripInvisible}
	all := tmpl.Sources{
		{Key: summaryKey, Text: c.SummaryTemplate, File: c.SummaryTemplateFile},
		{Key: detailsKey, Text: c.DetailsTemplate, File: c.DetailsTemplateFile, CheckOutput: checkDetails},
		{
			Key: severityKey, Text: c.SeverityTemplate, File: c.SeverityTemplateFile, CheckOutput: checkSeverity,
			Optional: true,
		},
		{Key: componentKey, Text: c.ComponentTemplate, File: c.ComponentTemplateFile, Optional: true},
		{Key: groupKey, Text: c.GroupTemplate, File: c.GroupTemplateFile, Optional: true},
		{Key: classKey, Text: c.ClassTemplate, File: c.ClassTemplateFile, Optional: true},
		{
			Key: linkKey, Text: c.LinkTemplate, File: c.LinkTemplateFile, CheckOutput: tmpl.CheckLink, Options: visible,
			Optional: true,
		},
	}
	for i := range all {
		all[i].Single = true // digests are rejected
	}
	return all
}

// validateSamples renders sample alerts of the sink.
func (c *Config) validateSamples(ctx context.Context, sink string, samples []relay.Delivery) error {
	return c.templates().ValidateSamples(ctx, sink, c.alertSamples(samples))
}

// alertSamples returns the samples that trigger an alert. It changes their state, if any, to one that is a problem.
func (c *Config) alertSamples(samples []relay.Delivery) []relay.Delivery {
	var all []relay.Delivery
	for _, d := range samples {
		for _, d := range []relay.Delivery{d, failedSample(d)} {
			if e, err := newEvent(d, c.Severity); err == nil && e != nil && e.Payload != nil {
				all = append(all, d)
				break
			}
		}
	}
	return all
}

// failedSample returns a sample with the state failed if it has a state.
func failedSample(d relay.Delivery) relay.Delivery {
	if len(d.Notifications) != 1 {
		return d
	}
	n := d.Notifications[0]
	var data map[string]any
	if err := json.Unmarshal(n.Data, &data); err != nil {
		return d
	}
	object, _ := data["object"].(map[string]any)
	if state, _ := object["state"].(string); state == "" {
		return d
	}
	object["state"] = "failed"
	n.Data, _ = json.Marshal(data) // decoded JSON can be encoded
	d.Notifications = []relay.Notification{n}
	return d
}

func checkDetails(text []byte) error {
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return nil
	}
	if err := tmpl.CheckJSON(text); err != nil {
		return err
	}
	if text[0] != '{' {
		return errors.New(
			`renders JSON that is not an object: write {"error": {{ toJson ` +
				`.Object.Error }}}`,
		)
	}
	return nil
}

func checkSeverity(text []byte) error {
	if severity := strings.TrimSpace(string(text)); severity != "" && !isSeverity(severity) {
		return fmt.Errorf(
			"renders %q, which is not a severity: render critical, error, warning, info, or nothing to use "+
				"severity", relay.Truncate(severity, 60),
		)
	}
	return nil
}

// applyTemplates replaces fields of an alert by the rendered templates.
func (s *Sink) applyTemplates(ctx context.Context, e *event, d relay.Delivery) error {
	made, err := s.templates.Render(ctx, d)
	if err != nil {
		return err
	}
	p := e.Payload
	for key, field := range map[string]*string{
		summaryKey: &p.Summary, componentKey: &p.Component, groupKey: &p.Group,
		classKey: &p.Class,
	} {
		*field = cmp.Or(truncate(message.SingleLine(made[key]), maxField), *field)
	}
	if !d.Notifications[0].IsSample() { // a test must not page anyone
		p.Severity = cmp.Or(made[severityKey], p.Severity)
	}
	if details := made[detailsKey]; len(details) > maxDetails {
		p.Details = nil
	} else if details != "" {
		p.Details = []byte(details)
	}
	if address := made[linkKey]; address != "" {
		e.Links = []link{{Href: address, Text: "Open"}}
	}
	return nil
}
