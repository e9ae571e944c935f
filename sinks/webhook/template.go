package webhook

import (
	"cmp"
	"context"
	"fmt"
	"mime"
	"net/http"

	"github.com/hubrelay/hubrelay/internal/tmpl"
	"github.com/hubrelay/hubrelay/relay"
)

// templateSource is the body of format template.
func (c *Config) templateSource() tmpl.Source {
	s := tmpl.Source{Key: "template", Text: c.Template, File: c.TemplateFile}
	if tmpl.IsJSON(c.contentType()) {
		s.CheckOutput = tmpl.CheckJSON
	}
	return s
}

// contentType returns the media type of the body.
func (c *Config) contentType() string {
	for name, value := range c.Headers {
		if http.CanonicalHeaderKey(name) == "Content-Type" {
			return value
		}
	}
	if c.Format == formatStructured {
		return contentStructured
	}
	return cmp.Or(c.ContentType, "application/json")
}

// checkTemplate reports what is wrong with template, template_file and content_type.
func (c *Config) checkTemplate() error {
	wrong := func(field, problem string) error { return &relay.FieldError{Field: field, Problem: problem} }
	given := c.templateSource().IsSet()
	switch {
	case c.Format != formatTemplate && c.TemplateFile != "":
		return wrong("template_file", "has no effect without format: template: set the format, or remove this")
	case c.Format != formatTemplate && given:
		return wrong("template", "has no effect without format: template: set the format, or remove this")
	case c.Format != formatTemplate && c.ContentType != "":
		return wrong("content_type", "has no effect without format: template, because other bodies are JSON: remove it")
	case c.Format != formatTemplate:
		return nil
	case !given:
		return wrong("template",
			"is missing; format: template requires it, here or in template_file")
	}
	if c.ContentType != "" {
		if _, _, err := mime.ParseMediaType(c.ContentType); err != nil {
			return wrong("content_type", "is not a content type: write one such as text/plain or application/x-ndjson")
		}
		for name := range c.Headers {
			if http.CanonicalHeaderKey(name) == "Content-Type" {
				return wrong("content_type", "conflicts with headers."+name+": set only one of them")
			}
		}
	}
	return c.templateSource().Check()
}

// buildBody returns the body for d. It is the same in every attempt, unless the template changes or uses the current
// time.
func (s *Sink) buildBody(ctx context.Context, d relay.Delivery) ([]byte, error) {
	if s.template == nil {
		text, err := encodeBody(s.format, s.metadata, d)
		return text, relay.Permanent(err)
	}
	data, err := tmpl.NewData(d, s.name, nil)
	if err != nil {
		return nil, relay.Permanent(err)
	}
	text, err := s.template().Render(ctx, data)
	if err == nil && s.judge != nil {
		err = relay.Permanent(s.judge(text))
	}
	if err != nil {
		return nil, fmt.Errorf("render the template: %w", err)
	}
	return text, nil
}
