package email

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/samples"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/internal/tmpl"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

// What templates make comes out at a real server as it was meant, whatever a producer wrote into it.
func TestTemplatesByRealServer(t *testing.T) {
	t.Parallel()
	c, next := serve(t, tlsStart)
	const (
		subject = "{{ .Severity | toUpper }}:\r\nBcc: x@example.com {{ .Object.Error }} für {{ .Hub }}"
		text    = "Lage:\r\n  {{ .Object.Error }}\nEnde\x1b"
		html    = `<p title="{{ .Object.Error }}">{{ .Object.Error }}</p><a href="https://example.com/{{ .Object.ID ` +
			`}}">öffnen</a>`
	)
	d := hostile("0123456789abcdef01234567")
	const (
		ourSubject = "[PROBLEM] Something went wrong with a container as a whole: kaputt Bcc: evil@example.com " +
			"<script> (hub hub Bcc: evil@example.com)"
		theSubject = "BAD: Bcc: x@example.com Zürich: <b>Platte voll</b> . QUIT 💥 für hub Bcc: evil@example.com"
		theText    = "Lage:\n  Zürich: <b>Platte voll</b> \n.\nQUIT 💥\nEnde\n"
		theHTML    = "<p title=\"Zürich: &lt;b&gt;Platte voll&lt;/b&gt; \n.\nQUIT 💥\">Zürich: &lt;b&gt;Platte " +
			"voll&lt;/b&gt; \n.\nQUIT 💥</p><a href=\"https://example.com/inst-7\">öffnen</a>"
	)
	for name, x := range map[string]struct {
		subject, text, html string
		of                  relay.Delivery
		want                string
		parts               []string // the beginning of each
	}{
		"all": {subject, text, html, d, theSubject, []string{theText, theHTML}},
		"subject alone": {
			subject, "", "", d, theSubject,
			[]string{"Something went wrong", "<!DOCTYPE html>\n<html><head><meta charset=\"utf-8\"><title>BAD: Bcc"},
		},
		"text alone": {"", text, "", d, ourSubject, []string{theText}},
		"HTML alone": {"", "", html, d, ourSubject, []string{"Something went wrong", theHTML}},
		"nothing comes": {
			" \r\n{{ .Context.ClusterS }}", "{{ if .Digest }}x{{ end }}\n", "{{/* */}}", d, ourSubject,
			[]string{"Something went wrong", "<!DOCTYPE html>"},
		},
		"a long subject": {
			"{{ printf `%300d` 1 }}{{ range 300 }}ü{{ end }}", "x", "", d,
			"1" + strings.Repeat("ü", 99) + "…",
			[]string{"x\n"},
		},
		"a digest": {
			"{{ with .Digest }}{{ .Count }} of {{ .By.hub }}{{ end }}",
			"{{ range .Notifications }}{{ .Topic }}\n{{ end }}{{ .Digest.More }}", "",
			sinktest.SampleDigest("fedcba9876543210fedcba98", 5, 3), "5 of hub1",
			[]string{"container.created\ncontainer.created\ncontainer.created\n2\n"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			changed := *c
			changed.SubjectTemplate, changed.TextTemplate, changed.HTMLTemplate = strings.ReplaceAll(x.subject,
				"ClusterS", "Clusters | join ``"), x.text, x.html
			if err := changed.validate(); err != nil {
				t.Fatal(err)
			}
			if err := openTest(t, &changed).Deliver(t.Context(), x.of); err != nil {
				t.Fatal(err)
			}
			m := next()
			// A long value starts on a new line, and Python keeps the space of the fold.
			if strings.TrimSpace(m.Headers["Subject"]) != x.want || m.Headers["Bcc"] != "" || len(m.To) != 2 ||
				len(m.Defects) > 0 {
				t.Errorf("subject %q, want %q; %+v", m.Headers["Subject"], x.want, m)
			}
			if len(m.Parts) != len(x.parts) {
				t.Fatalf("%d parts: %v", len(m.Parts), m.Parts)
			}
			for i, want := range x.parts {
				if !strings.HasPrefix(m.Parts[i][1], want) || m.Parts[i][0] != []string{"text/plain", "text/html"}[i] {
					t.Errorf("part %d is %v, want %q", i, m.Parts[i], want)
				}
			}
		})
	}
}

// A template error makes a dead letter with its line. An attempt that timed out, or a file that became invalid, does
// not.
func TestTemplateFails(t *testing.T) {
	t.Parallel()
	s := &script{}
	c := s.play(t, s.converse(nil))
	c.HTMLTemplate = "<p>\n{{ index .Context.DNSZones 3 }}</p>"
	sink := openTest(t, c)
	d := hostile("0123456789abcdef01234567")
	var m *tmpl.TemplateError
	err := sink.Deliver(t.Context(), d)
	if outcome, _ := relay.Classify(err); outcome != relay.OutcomePermanent || !errors.As(err, &m) || m.Line != 2 ||
		!strings.HasPrefix(err.Error(), "html_template: line 2, column 4: ") {
		t.Errorf("%s: %v", outcome, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	if outcome, _ := relay.Classify(sink.Deliver(ctx, d)); outcome != relay.OutcomeRetry {
		t.Errorf("without time: %s", outcome)
	}
	c.HTMLTemplate, c.TextTemplate = "", "{{ range 2000000 }}x{{ end }}"
	if err := openTest(t, c).Deliver(t.Context(), d); err == nil ||
		!strings.Contains(err.Error(), "text_template: line 1") {
		t.Errorf("without an end: %v", err)
	}
	if len(s.mails) > 0 {
		t.Errorf("sent %s", s.mails)
	}
	c.TextTemplate, c.TextTemplateFile = "", filepath.Join(t.TempDir(), "text.tmpl")
	if err := os.WriteFile(c.TextTemplateFile, []byte("from a file: {{ .Topic }}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := openTest(t, c).Deliver(t.Context(), d); err != nil ||
		!strings.Contains(s.mails[0], "from a file: container.error\r\n") || strings.Contains(s.mails[0], "multipart") {
		t.Errorf("%v, %v", err, s.mails)
	}
}

// Special spaces and invisible characters of a producer cannot leave their place in an HTML template.
func TestHiddenInHTML(t *testing.T) {
	t.Parallel()
	d := hostile("0123456789abcdef01234567")
	d.Notifications[0].Data = []byte(
		`{"topic":"container.error","object":{"id":"cXXigKhoaWRkZW7igK4=","error":"a%E2%80%A8hidden%E2%80%AE",` +
			`"\u2028hidden\u202e":1},"context":{"hub_id":"h"}}`,
	)
	for source, want := range map[string]string{
		`<p title={{ urlUnescape .Object.Error }}>`: "<p title=a&#32;hidden>",
		`<p title={{ b64dec .Object.ID }}>`:         "<p title=qu&#32;hidden>",
		`{{ range $name, $v := .Data.object }}{{ if contains "hidden" $name }}<p title={{ $name }}>{{ end }}{{ end }}`: "<p title=&#32;hidden>",
		`<p>{{ slice "ü" 0 1 }}</p>`: "<p>\ufffd</p>",
	} {
		got, err := composed(t, Config{HTMLTemplate: source}, d)
		if err != nil || got.html != want {
			t.Errorf("%s makes %q, %v; want %q", source, got.html, err, want)
		}
	}
	if got, err := composed(t, Config{TextTemplate: "{{ .Raw }}{{ .Data }}{{ toJson .Data }}"}, d); err != nil ||
		strings.ContainsAny(got.text, "\u2028\u202e") || strings.Count(got.text, " hidden") != 3 {
		t.Errorf("%q, %v", got.text, err)
	}
}

func composed(t *testing.T, c Config, d relay.Delivery) (content, error) {
	t.Helper()
	c.Sender, c.To = "a@example.com", []string{"b@example.com"}
	m, err := newComposer(relay.SinkSettings{Name: "mail", Log: testkit.Log(t)}, &c)
	if err != nil {
		t.Fatal(err)
	}
	return m.renderContent(t.Context(), d)
}

func TestTemplatesAreChecked(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		change  func(*Config)
		problem string
	}{
		{func(c *Config) { c.SubjectTemplate = "{{ .Topic }" }, "subject_template line 1: "},
		{
			func(c *Config) { c.SubjectTemplate, c.SubjectTemplateFile = "x", "y" },
			"subject_template_file conflicts with subject_template",
		},
		{func(c *Config) { c.TextTemplateFile = "testdata/missing" }, "text_template_file cannot be read"},
		{func(c *Config) { c.HTMLTemplate = "<a href='{{ .Topic }}>" }, "html_template "},
		{
			func(c *Config) { c.HTMLTemplate = "<p>\n{{ .Object.Error | safeHtml }}" },
			"html_template line 2: safeHtml is not available in HTML",
		},
		{
			func(c *Config) { c.SubjectTemplate = "{{ .Object.Eror }}" },
			`subject_template line 1, column 11: at .Object.Eror: there is no .Eror here; did you mean "Error"? ` +
				`(with a sample of container.error)`,
		},
		{
			func(c *Config) { c.TextTemplate = "\n{{ index .Context.Containers 0 }}" },
			"text_template line 2, column 4: at index .Context.Containers 0: the list is shorter than that; ask " +
				"first whether it has any: {{ if .Context.Containers }} (with a sample of a digest)",
		},
		{func(c *Config) { c.HTMLTemplate = "<p>{{ .Digest.Count }}" }, "html_template line 1, column 14: "},
		{func(c *Config) {
			c.SubjectTemplate = "{{ .Topic }}"
			c.TextTemplate = "{{ .Object.Error }}"
			c.HTMLTemplate = "<p>{{ .Hub }}"
		}, ""},
	} {
		c := &Config{
			Host: "smtp.example.com", TLS: tlsStart, Auth: "plain", Sender: "a@example.com",
			To: []string{"b@example.com"},
		}
		x.change(c)
		err := c.validate()
		if err == nil {
			err = c.validateSamples(t.Context(), "mail",
				append(samples.Deliveries([]string{"container.error"}), samples.Digest([]string{"container.error"})))
		}
		var field *relay.FieldError
		if (err == nil) != (x.problem == "") || err != nil &&
			(!errors.As(err, &field) || !strings.Contains(err.Error(), x.problem)) {
			t.Errorf("%v, want %s", err, x.problem)
		}
	}
}

// Explain also shows the output of templates.
func TestExplainTemplates(t *testing.T) {
	t.Parallel()
	c := &Config{
		Host: "smtp.example.com", TLS: tlsStart, Auth: "plain", Sender: "a@example.com", To: []string{"b@example.com"},
		SubjectTemplate: "{{ .Sink }}: {{ .Topic }}", TextTemplate: "{{ .Object.ID }}",
	}
	explainer, ok := openTest(t, c).(relay.Previewer)
	if !ok {
		t.Fatal("shows nothing")
	}
	e, err := explainer.Preview(t.Context(), hostile("0123456789abcdef01234567"))
	if err != nil || string(e.Payload) != "inst-7\r\n" {
		t.Errorf("%q, %v", e.Payload, err)
	}
	for _, h := range e.Headers {
		if h.Name == "Subject" && h.Value != "test: container.error" {
			t.Errorf("subject %q", h.Value)
		}
	}
}
