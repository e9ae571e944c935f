package pagerduty

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
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

// own says all of an alert by templates.
func own() Config {
	return Config{
		SummaryTemplate:   "{{ .Object.Error }}\r\n on {{ .Hub }}",
		DetailsTemplate:   `{"why": {{ toJson .Object.Error }}, "topic": {{ toJson .Topic }}}`,
		SeverityTemplate:  `{{ if match "disk" .Object.Error }}warning{{ end }}`,
		ComponentTemplate: "{{ .Object.ID }}", GroupTemplate: "{{ .Sink }}", ClassTemplate: "{{ .Object.State }}",
		LinkTemplate: "https://portal.example.com/{{ urlquery .Object.ID }}?{{ .Object.Error | urlquery }}",
	}
}

func TestTemplates(t *testing.T) {
	t.Parallel()
	const hostile = "disk full \u202e\r\n<b>\"}"
	object, err := json.Marshal(map[string]string{"id": "a/b <x>", "error": hostile, "state": ""})
	if err != nil {
		t.Fatal(err)
	}
	d := note("container.error", string(object), `["c1"]`)
	ours, err := newEvent(d, "critical")
	if err != nil {
		t.Fatal(err)
	}
	nothing := " {{ if .Digest }}x{{ end }}\n"
	long := `{{ range 3000 }}ü{{ end }}`
	for name, c := range map[string]struct {
		config Config
		want   event
	}{
		"all": {own(), event{Payload: &payload{
			// it has no state
			Summary: "disk full <b>\"} on h", Severity: "warning", Component: "a/b <x>", Group: "test",
			Class:   "container.error",
			Details: []byte(`{"why":"disk full \u202e\r\n<b>\"}","topic":"container.error"}`),
		}, Links: []link{{"https://portal.example.com/a%2Fb+%3Cx%3E?disk+full+%0A%3Cb%3E%22%7D", "Open"}}}},
		"nothing": {Config{
			SummaryTemplate: nothing, DetailsTemplate: nothing, SeverityTemplate: nothing, ComponentTemplate: nothing,
			GroupTemplate: nothing,
			ClassTemplate: nothing, LinkTemplate: nothing,
		}, *ours},
		"long": {Config{
			SummaryTemplate: long, ComponentTemplate: long, GroupTemplate: long, ClassTemplate: long,
			DetailsTemplate: `{"a": "{{ range 40000 }}1234567{{ end }}"}`,
		}, event{Payload: &payload{
			Summary: strings.Repeat("ü", 1023) + "…", Component: strings.Repeat("ü", 1023) + "…",
			Group: strings.Repeat("ü", 1023) + "…", Class: strings.Repeat("ü", 1023) + "…",
			Severity: "critical",
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			s, p := openConfig(t, sinktest.Accept, c.config)
			if err := s.Deliver(t.Context(), d); err != nil {
				t.Fatal(err)
			}
			shown, err := s.Preview(t.Context(), d)
			var explained event
			if err != nil || json.Unmarshal(shown.Payload, &explained) != nil {
				t.Fatalf("explained as %s, %v", shown.Payload, err)
			}
			for _, got := range []event{p.events[0], explained} {
				want := *c.want.Payload
				want.Source, want.Timestamp = ours.Payload.Source, ours.Payload.Timestamp
				wanted, _ := event{
					Payload: &want, Links: c.want.Links, Action: ours.Action, DedupKey: ours.DedupKey,
					Client: ours.Client, RoutingKey: got.RoutingKey,
				}.text()
				if text, _ := got.text(); text != wanted {
					t.Errorf("got  %s\nwant %s", text, wanted)
				}
			}
			// A resolution uses no templates, and a test pages no one.
			good := note("container.state.changed", `{"id":"a","state":"running"}`, `[]`)
			sample := note("container.error", `{"id":"x","error":"disk"}`, `[]`)
			n := &sample.Notifications[0]
			n.Cursor, n.Data = "", append(n.Data[:len(n.Data)-1:len(n.Data)-1], `,"sample":true}`...)
			if err := errors.Join(s.Deliver(t.Context(), good), s.Deliver(t.Context(), sample)); err != nil {
				t.Fatal(err)
			}
			if p.events[1].Action != "resolve" || p.events[1].Payload != nil || p.events[2].Payload.Severity != "info" {
				t.Errorf("got %+v", p.events[1:])
			}
		})
	}
}

// text is an event for people, with its details in one form.
func (e event) text() (string, error) {
	if e.Payload != nil && e.Payload.Details != nil {
		var details any
		if err := json.Unmarshal(e.Payload.Details, &details); err != nil {
			return "", err
		}
		one := *e.Payload
		one.Details, _ = json.Marshal(details)
		e.Payload = &one
	}
	text, err := e.encode("")
	return string(text), err
}

// An error in a required template makes a dead letter with the line of the template.
func TestTemplateFails(t *testing.T) {
	t.Parallel()
	d := note("container.error", `{"id":"i","error":"x"}`, `[]`)
	for _, c := range []struct {
		config Config
		want   string
		line   int
	}{
		{Config{SummaryTemplate: "\n{{ index .Context.Containers 0 }}"}, "summary_template: line 2, column 4: ", 2},
		{
			Config{DetailsTemplate: `{"a": {{ .Object.Error }}}`},
			"custom_details_template: what it renders is not JSON",
			0,
		},
		{
			Config{DetailsTemplate: `[{{ toJson .Object.Error }}]`},
			"custom_details_template renders JSON that is not an object", 0,
		},
		{Config{SummaryTemplate: "{{ range 1000000 }}{{ end }}"}, "summary_template: line 1", 1},
	} {
		s, p := openConfig(t, sinktest.Accept, c.config)
		err := s.Deliver(t.Context(), d)
		var m *tmpl.TemplateError
		if outcome, _ := relay.Classify(err); outcome != relay.OutcomePermanent ||
			!strings.HasPrefix(err.Error(), c.want) || errors.As(err, &m) && m.Line != c.line || len(p.events) > 0 {
			t.Errorf("%s: %v, want %s", outcome, err, c.want)
		}
	}
}

// If an optional template fails, the alert is sent without that part. The log reports it once per version of the
// template.
func TestOptionalTemplateFails(t *testing.T) {
	t.Parallel()
	d := note("container.error", `{"id":"a b","error":"x"}`, `["c1"]`)
	file := filepath.Join(t.TempDir(), "group.tmpl")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("{{ index .Context.DNSZones 0 }}")
	var log strings.Builder
	s, p := openLogged(t, sinktest.Accept, Config{
		SummaryTemplate: "{{ .Object.ID }}", SeverityTemplate: "{{ .Object.Error }}",
		LinkTemplate:      "https://portal.example.com/{{ .Object.ID }}",
		ComponentTemplate: "{{ range 1000000 }}{{ end }}", GroupTemplateFile: file,
		ClassTemplate: "{{ index .Context.DNSZones 0 }}",
	}, slog.New(slog.NewTextHandler(&log, nil)))
	for range 3 {
		if err := s.Deliver(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range p.events {
		if pl := e.Payload; pl.Summary != "a b" || pl.Severity != "critical" || pl.Component != "c1" ||
			pl.Group != "production" || pl.Class != "container.error" || len(e.Links) != 0 {
			t.Errorf("got %+v, %+v", pl, e.Links)
		}
	}
	said := strings.ReplaceAll(log.String(), `\"`, `"`)
	for _, want := range []string{
		`template=severity_template error="severity_template renders "x", which is not a severity`,
		"template=component_template error=\"component_template: line 1",
		"template=group_template error=\"group_template: line 1, column 4: ",
		"template=class_template error=\"class_template: line 1, column 4: ",
		`template=link_template error="link_template makes "https://portal.example.com/a b", which is no address`,
	} {
		if strings.Count(said, want) != 1 {
			t.Errorf("%s is said %d times in\n%s", want, strings.Count(said, want), said)
		}
	}
	if n := strings.Count(said, "\n"); n != 5 {
		t.Errorf("%d lines:\n%s", n, said)
	}
	put("{{ index .Context.DNSZones 1 }}")
	testkit.Eventually(t, "the error of the changed template", func() error {
		if strings.Count(log.String(), "template=group_template") >= 2 {
			return nil
		}
		if err := s.Deliver(t.Context(), d); err != nil {
			t.Fatalf("%v; logged %s", err, log.String())
		}
		return fmt.Errorf("logged %s", log.String())
	})
	// Without time nothing is left out: another attempt may have it.
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	if outcome, _ := relay.Classify(s.Deliver(ctx, d)); outcome != relay.OutcomeRetry {
		t.Errorf("without time: %s", outcome)
	}
}

// TestRehearsesAlertsAlone has templates that fail for topics without alerts, and one that fails for a state that
// triggers an alert.
func TestRehearsesAlertsAlone(t *testing.T) {
	t.Parallel()
	topics := []string{
		"container.error", "container.created", "container.updated", "container.state.changed",
		"container.instance.health.status.changed",
	}
	list := append(samples.Deliveries(topics), samples.Digest(topics))
	c := Config{
		URL: endpoint, RoutingKey: key, Severity: "error",
		SeverityTemplate: `{{ if eq .Severity "bad" }}critical{{ else }}{{ .Severity }}{{ end }}`,
	}
	if err := c.validateSamples(t.Context(), "oncall", list); err != nil {
		t.Error(err)
	}
	c.SeverityTemplate = `{{ if eq .Topic "container.state.changed" }}{{ .Object.State }}{{ end }}`
	if err := c.validateSamples(t.Context(), "oncall", list); err == nil ||
		!strings.Contains(err.Error(), `renders "failed"`) {
		t.Errorf("rehearsed with %v", err)
	}
	c.SeverityTemplate, c.SeverityTemplateFile = "", filepath.Join(t.TempDir(), "severity.tmpl")
	if err := os.WriteFile(c.SeverityTemplateFile, []byte(`{{ if ne .Severity "bad" }}{{ .Topik }}{{ end }}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	sink, err := open(relay.SinkSettings{
		Name: "oncall", Log: testkit.Log(t), Samples: func() []relay.Delivery { return list },
	}, &c)
	if err != nil {
		t.Fatal(err)
	}
	_ = sink.Close()
}

func TestTemplatesAreChecked(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "details.tmpl")
	if err := os.WriteFile(file, []byte("{\n  \"a\": {{ .Object.Eror }}\n}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		config  Config
		problem string
	}{
		{own(), ""},
		{Config{SummaryTemplate: "{{ .Topic }"}, "summary_template line 1: "},
		{Config{ClassTemplate: "a", ClassTemplateFile: "b"}, "class_template_file conflicts with class_template"},
		{
			Config{DetailsTemplateFile: file}, "custom_details_template_file " + file +
				", line 2, column 18: at .Object.Eror: there is no .Eror here",
		},
		{
			Config{DetailsTemplate: "[]"}, "custom_details_template renders JSON that is not an object: " +
				"write {\"error\": {{ toJson .Object.Error }}} (with a sample of " +
				"container.error)",
		},
		{
			Config{SeverityTemplate: "{{ .Severity }}"}, `severity_template renders "bad", which is not a ` +
				`severity: render critical, error, warning, info, or nothing to use severity (with a sample of ` +
				`container.error)`,
		},
		{Config{LinkTemplate: "{{ .Hub }}"}, "link_template makes "},
		{Config{SummaryTemplate: "{{ index .Context.Containers 0 }}"}, ""}, // a digest has none, and is refused
	} {
		c := x.config
		c.URL, c.RoutingKey, c.Severity = endpoint, key, "error"
		err := c.validate()
		if err == nil {
			err = c.validateSamples(t.Context(), "oncall",
				append(samples.Deliveries([]string{"container.error"}), samples.Digest([]string{"container.error"})))
		}
		var field *relay.FieldError
		if (err == nil) != (x.problem == "") || err != nil &&
			(!errors.As(err, &field) || !strings.HasPrefix(err.Error(), x.problem)) {
			t.Errorf("%v, want %s", err, x.problem)
		}
	}
}
