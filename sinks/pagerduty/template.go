package pagerduty

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/prose"
	"github.com/hubrelay/hubrelay/relay/templates"
)

// The settings that templates have.
const (
	summaryKey   = "summary_template"
	detailsKey   = "custom_details_template"
	severityKey  = "severity_template"
	componentKey = "component_template"
	groupKey     = "group_template"
	classKey     = "class_template"
	linkKey      = "link_template"
)

func (c *Config) templates() templates.Sources {
	all := templates.Sources{
		{Key: summaryKey, Text: c.SummaryTemplate, File: c.SummaryTemplateFile},
		{Key: detailsKey, Text: c.DetailsTemplate, File: c.DetailsTemplateFile, Judge: judgeDetails},
		{Key: severityKey, Text: c.SeverityTemplate, File: c.SeverityTemplateFile, Judge: judgeSeverity},
		{Key: componentKey, Text: c.ComponentTemplate, File: c.ComponentTemplateFile},
		{Key: groupKey, Text: c.GroupTemplate, File: c.GroupTemplateFile},
		{Key: classKey, Text: c.ClassTemplate, File: c.ClassTemplateFile},
		{Key: linkKey, Text: c.LinkTemplate, File: c.LinkTemplateFile, Judge: templates.JudgeLink},
	}
	for i := range all {
		all[i].Single = true // a digest is refused
	}
	return all
}

// Rehearse renders samples of what the sink would send.
func (c *Config) Rehearse(ctx context.Context, sink string, samples []relay.Delivery) error {
	return c.templates().Rehearse(ctx, sink, samples)
}

func judgeDetails(text []byte) error {
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return nil
	}
	if err := templates.JudgeJSON(text); err != nil {
		return err
	}
	if text[0] != '{' {
		return errors.New(`makes JSON that is no object, of which PagerDuty shows the members: write {"error": {{ toJson .Object.Error }}}`)
	}
	return nil
}

func judgeSeverity(text []byte) error {
	if severity := strings.TrimSpace(string(text)); severity != "" && !isSeverity(severity) {
		return fmt.Errorf("makes %q, which PagerDuty does not know: make critical, error, warning or info, or nothing for what severity says", relay.Clip(severity, 60))
	}
	return nil
}

// customize puts what templates make of d into an alert.
func (s *Sink) customize(ctx context.Context, e *event, d relay.Delivery) error {
	made, err := s.templates.Render(ctx, d)
	if err != nil {
		return err
	}
	p := e.Payload
	for key, field := range map[string]*string{summaryKey: &p.Summary, componentKey: &p.Component, groupKey: &p.Group, classKey: &p.Class} {
		*field = cmp.Or(fit(prose.Clean(made[key]), maxField), *field)
	}
	if !d.Notifications[0].IsSample() { // a test wakes nobody up
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
