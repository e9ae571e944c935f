package webhook

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/samples"
	"github.com/hubrelay/hubrelay/relay"
)

func TestTemplateAsSent(t *testing.T) {
	t.Parallel()
	const source = `{"text": {{ toJson .Object.Error }}, "sink": "{{ .Sink }}", "n": {{ len .Notifications }}}`
	for _, c := range []struct {
		config Config
		kind   string
	}{
		{Config{Template: source}, "application/json"},
		{Config{Template: source, ContentType: "text/plain; charset=utf-8"}, "text/plain; charset=utf-8"},
		{Config{Template: source, Headers: map[string]string{"content-type": "text/x"}}, "text/x"},
	} {
		srv, last := capture(t, nil)
		config := c.config
		config.URL, config.Format, config.Secrets = srv.URL, formatTemplate, []string{secretA}
		s := openTest(t, &config)
		d := samples.Deliveries([]string{"container.error"})[0]
		if err := s.Deliver(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		r, sent := last()
		want := `{"text": "pull: image \"app:1.2\" not found & <none> of 3 mirrors has it\n\tgave up after 30s", ` +
			`"sink": "` + settings.Name + `", "n": 1}`
		if string(sent) != want || r.Header.Get("Content-Type") != c.kind || !verify(t, secretA, r.Header, sent) {
			t.Errorf("sent %s as %s", sent, r.Header)
		}
		if e, err := s.Preview(t.Context(), d); err != nil || string(e.Payload) != want {
			t.Errorf("explained %s, %v", e.Payload, err)
		}
	}
}

// TestTemplateFails shows that a template error is permanent and sends nothing.
func TestTemplateFails(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"\n{{ range 1000000000 }}{{ end }}": "render the template: line 2: takes more " +
			"than 50000 steps",
		`{{ range 49000 }}{{ $.Object.ID }}{{ end }}`: "line 1: the output is longer than 1 MiB",
		`{{ index .Context.DNSZones 0 }}`: "line 1, column 4: at index " +
			".Context.DNSZones 0: the list is shorter",
		`{"text": "{{ .Object.Error }}"}`:                               "is not JSON",
		`{{ if eq .Topic "job.created" }}{}{{ end }}`:                   "renders nothing, which is not JSON",
		`{{ define "x" }}{{ template "x" }}{{ end }}{{ template "x" }}`: "does one call itself",
	} {
		srv, last := capture(t, nil)
		s := openTest(t, &Config{URL: srv.URL, Format: formatTemplate, Template: source})
		err := s.Deliver(t.Context(), samples.Deliveries([]string{"container.error"})[0])
		if outcome, _ := relay.Classify(err); outcome != relay.OutcomePermanent ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %s, %v", source, outcome, err)
		}
		if r, _ := last(); r != nil {
			t.Errorf("%s: sent something", source)
		}
	}
}

func TestTemplateSettings(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "body.tmpl")
	if err := os.WriteFile(file, []byte("{{ .Raw }}\n{{ .Topik }}"), 0o600); err != nil {
		t.Fatal(err)
	}
	topics := samples.Deliveries([]string{"container.error", "billing.credit.error"})
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{Format: "template"}, "template is missing; format: template requires"},
		{Config{Template: "x"}, "template has no effect without format: template"},
		{Config{TemplateFile: file}, "template_file has no effect without format: template"},
		{Config{Format: "template", Template: "x", Metadata: metadataAlways}, "metadata has no effect on a template"},
		{Config{ContentType: "text/plain"}, "content_type has no effect without format: template"},
		{Config{Format: "template", Template: "x", TemplateFile: file}, "template_file conflicts with template"},
		{Config{Format: "template", Template: "x", ContentType: "text plain"}, "content_type is not a content type"},
		{Config{
			Format: "template", Template: "x", ContentType: "text/plain",
			Headers: map[string]string{"content-type": "a/b"},
		}, "content_type conflicts with headers.content-type"},
		{
			Config{Format: "template", Template: "a\n{{ .Topic | toUper }}"},
			`template line 2: there is no function "toUper"; did you mean "toUpper"?`,
		},
		{Config{Format: "template", TemplateFile: file + "x"}, "template_file cannot be read"},
		{
			Config{Format: "template", TemplateFile: file},
			"template_file " + file +
				`, line 2, column 4: at .Topik: there is no .Topik here; did you mean "Topic"? (with a sample of ` +
				`container.error)`,
		},
		{
			Config{Format: "template", Template: `["{{ index .Context.Containers 0 }}"]`},
			"(with a sample of billing.credit.error)",
		},
		{
			Config{Format: "template", Template: `{"e": "{{ .Object.Error }}"}`},
			"write texts by toJson and without quotes around",
		},
		{Config{Format: "template", Template: `{{ range 1000000000 }}{{ end }}`}, "takes more than 50000 steps"},
		{Config{Format: "template", Template: `{"e": {{ toJson .Object.Error }}}`}, ""},
		{Config{Format: "template", Template: `{{ .Object.Error }}`, ContentType: "text/plain"}, ""},
	} {
		c.config.URL, c.config.Secrets = "https://example.com/", []string{secretA}
		var err error
		for _, e := range c.config.Check(t.Context(), relay.CheckEnv{Name: "hook", Samples: func() []relay.Delivery { return topics }}).Errors {
			err = errors.Join(err, &e)
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v:\n got %v\nwant %s", c.config, err, c.want)
		}
	}
}
