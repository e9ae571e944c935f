package email

import (
	"bytes"
	"context"
	"strings"

	"github.com/hubrelay/hubrelay/internal/message"
	"github.com/hubrelay/hubrelay/internal/tmpl"
	"github.com/hubrelay/hubrelay/relay"
)

// The settings that are templates.
const (
	subjectKey = "subject_template"
	textKey    = "text_template"
	htmlKey    = "html_template"
)

// maxSubject is the maximum size of a subject in bytes, before it is encoded.
const maxSubject = 200

func (c *Config) templateSources() tmpl.Sources {
	// Invisible characters are removed before HTML is escaped. Later, a special space that becomes an ordinary one
	// could end an attribute value.
	plain := tmpl.Options{Clean: message.StripInvisible}
	return tmpl.Sources{
		{Key: subjectKey, Text: c.SubjectTemplate, File: c.SubjectTemplateFile, Options: plain},
		{Key: textKey, Text: c.TextTemplate, File: c.TextTemplateFile, Options: plain},
		{Key: htmlKey, Text: c.HTMLTemplate, File: c.HTMLTemplateFile, Options: tmpl.Options{
			HTML: true, Clean: message.StripInvisible,
		}},
	}
}

// validateSamples renders sample mails of the sink.
func (c *Config) validateSamples(ctx context.Context, sink string, samples []relay.Delivery) error {
	return c.templateSources().ValidateSamples(ctx, sink, samples)
}

// content is the text of a mail. html is empty for a plain text mail.
type content struct{ subject, text, html string }

// renderContent renders the templates for d. It uses the default text for missing templates and empty output.
func (cm *composer) renderContent(ctx context.Context, d relay.Delivery) (content, error) {
	made, err := cm.templates.Render(ctx, d)
	if err != nil {
		return content{}, err
	}
	page := cm.summaries.Build(d)
	if subject := message.SingleLine(made[subjectKey]); subject != "" {
		page.Subject = subject
	}
	c := content{
		relay.Truncate(page.Subject,
			maxSubject), message.StripInvisible(made[textKey]), strings.ToValidUTF8(made[htmlKey], "\ufffd"),
	}
	if c.text != "" {
		c.text += "\n"
		return c, nil // default HTML would hide the operator's text
	}
	var text, html bytes.Buffer
	if err := page.WriteText(&text); err != nil {
		return content{}, relay.Permanent(err)
	}
	c.text = text.String()
	if c.html == "" {
		if err := writeHTML(&html, page); err != nil {
			return content{}, relay.Permanent(err)
		}
		c.html = html.String()
	}
	return c, nil
}
