package tmpl

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/internal/samples"
	"github.com/hubrelay/hubrelay/relay"
)

func newSample(topic string) relay.Delivery { return samples.Deliveries([]string{topic})[0] }

func newData(t testing.TB, d relay.Delivery, clean func(string) string) *Data {
	t.Helper()
	data, err := NewData(d, "hook", clean)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// renderSource renders a template with a sample of container.error.
func renderSource(t testing.TB, source string, o Options) (string, error) {
	t.Helper()
	tmpl, err := Parse(source, o)
	if err != nil {
		return "", err
	}
	out, err := tmpl.Render(context.Background(), newData(t, newSample("container.error"), o.Clean))
	return string(out), err
}

func TestRender(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ source, want string }{
		{"", ""},
		{"plain", "plain"},
		{
			"{{ .Topic }} {{ .Meaning }} {{ .Severity }} {{ .Sink }}",
			"container.error Something went wrong with a container as a whole bad hook",
		},
		{
			"{{ .Object.ID }} {{ .Context.HubID }} {{ index .Context.Containers 0 }}",
			"6922f0000123456789abcd01 6922f0000123456789abcd03 6922f0000123456789abcd02",
		},
		{"{{ .ID }} {{ .Delivery }} {{ .Time.Unix }}", "6922f0000123456789abcdef 6922f0000123456789abcdef 1763897344"},
		{"{{ .Data.context.clusters }} {{ .Data.object.nothing }}", "[production] <no value>"},
		{`{{ range $i, $c := .Context.Clusters }}{{ $i }}{{ $c }}{{ else }}none{{ end }}`, "0production"},
		{`{{ range $n := 3 }}{{ if eq $n 1 }}{{ continue }}{{ end }}{{ $n }}{{ end }}`, "02"},
		{`{{ range 9 }}{{ if eq . 3 }}{{ break }}{{ end }}{{ . }}{{ end }}`, "012"},
		{`{{ define "x" }}<{{ . }}>{{ end }}{{ template "x" .Topic }}{{ template "x" 1 }}`, "<container.error><1>"},
		{`{{ $x := 1 }}{{ range 3 }}{{ $x = . }}{{ end }}{{ $x }}`, "2"},
		{`{{ with .Digest }}digest{{ else }}{{ len .Notifications }}{{ end }}`, "1"},
		{`{{ if eq (len .Context.Clusters) 1 }}one{{ end }}`, "one"},
		{`{{ and .Topic (not .Sample) }}`, "true"},
		{`{{ urlquery "a b+c/d" | reReplaceAll "[+]" "%20" }}`, "a%20b%2Bc%2Fd"}, // for a path
		{
			`{{ .Time.Format "2006" }} {{ ((.Time.Add 0).UTC).Format "Jan" }} ` +
				`{{ with .Time }}{{ .Format "02" }}{{ end }}`,
			"2025 Nov 23",
		},
		{
			`{{ $t := .Time }}{{ if $t.Format "15" }}{{ "15:04" | $t.UTC.Format | toUpper }}{{ end }} ` +
				`{{ printf "%[1]s %[1]s" .Topic }}`,
			"11:29 container.error container.error",
		},
	} {
		if got, err := renderSource(t, c.source, Options{}); err != nil || got != c.want {
			t.Errorf("%s = %q, %v; want %q", c.source, got, err, c.want)
		}
	}
}

func TestRender_JSONOfNotification(t *testing.T) {
	t.Parallel()
	want := string(newSample("container.error").Notifications[0].Data)
	for _, source := range []string{
		"{{ .Raw }}", "{{ . }}", "{{ toJson . }}", "{{ range .Notifications }}{{ . }}{{ end }}",
	} {
		if got, err := renderSource(t, source, Options{}); err != nil || !sameJSON(t, got, want) {
			t.Errorf("%s = %s, %v; want %s", source, got, err, want)
		}
	}
}

func TestRender_Digest(t *testing.T) {
	t.Parallel()
	d := samples.Digest([]string{"container.error", "job.created"})
	const source = `{{ .Topic }} {{ .Digest.Count }} {{ .Digest.More }} {{ .Severity }} {{ len .Notifications }}` +
		`{{ range $topic, $n := .Digest.Topics }} {{ $topic }}={{ $n }}{{ end }} {{ .Digest.Last.Sub .Digest.First }}`
	tmpl, err := Parse(source, Options{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := tmpl.Render(t.Context(), newData(t, d, nil))
	if want := "hubrelay.digest 5 2 bad 3 container.error=4 job.created=1 10s"; err != nil || string(got) != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	payload, err := d.Payload()
	if err != nil {
		t.Fatal(err)
	}
	if raw, err := newData(t, d, nil).Raw(); err != nil || raw != string(payload) {
		t.Errorf("Raw() = %s, %v; want %s", raw, err, payload)
	}
	// A batch, even of one notification, is like a digest that lists all notifications.
	d.Digest, d.Batch = nil, true
	if data := newData(t, d, nil); data.Digest.Count != 3 || data.Digest.Topics["job.created"] != 1 {
		t.Errorf("batch: got %+v", data.Digest)
	}
}

func TestRender_CleansTexts(t *testing.T) {
	t.Parallel()
	clean := func(s string) string { return strings.NewReplacer("<", "&lt;", "&", "&amp;").Replace(s) }
	for _, source := range []string{
		"{{ .Object.Error }}", "{{ .Data.object.error }}", "{{ .Raw }}", "{{ toJson . }}", "{{ . }}",
	} {
		got, err := renderSource(t, source, Options{Clean: clean})
		if err != nil || strings.Contains(got, "<none>") || strings.Contains(got, `\u003c`) ||
			!strings.Contains(got, "&lt;none>") {
			t.Errorf("%s = %s, %v; want a cleaned text", source, got, err)
		}
	}
}

// Member names are cleaned too, and several names may become equal.
func TestRender_CleansMemberNames(t *testing.T) {
	t.Parallel()
	clean := func(s string) string { return strings.NewReplacer("<", "&lt;", "\u200b", "").Replace(s) }
	d := newSample("container.error")
	d.Notifications[0].Data = []byte(`{"topic":"container.error",` +
		`"object":{"id":"a","<!x>":{"<y>":1},"i\u200bd":"b","b\u200bc":1,"bc\u200b":2},"context":{"hub_id":"h"}}`)
	for _, test := range []struct{ source, want string }{
		{
			"{{ range $name, $value := .Data.object }}{{ $name }}={{ $value }} {{ end }}",
			"&lt;!x>=map[&lt;y>:1] bc=2 id=a ",
		},
		{"{{ toJson .Data.object }}", `{"&lt;!x>":{"&lt;y>":1},"bc":2,"id":"a"}`},
		{
			"{{ .Raw }}",
			`{"context":{"hub_id":"h"},"object":{"&lt;!x>":{"&lt;y>":1},"bc":2,"id":"a"},"topic":"container.error"}`,
		},
		{"{{ range .Notifications }}{{ len .Data.object }}{{ end }}", "3"},
	} {
		tmpl, err := Parse(test.source, Options{Clean: clean})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tmpl.Render(t.Context(), newData(t, d, clean)); err != nil || string(got) != test.want {
			t.Errorf("%s = %s, %v; want %s", test.source, got, err, test.want)
		}
	}
	got, err := renderSource(t, "{{ .Data.object.id }}", Options{})
	if err != nil || got != "6922f0000123456789abcd01" {
		t.Errorf("without Clean: got %s, %v", got, err)
	}
}

// Decoding functions must not restore the parts that were cleaned.
func TestRender_CleansDecodedTexts(t *testing.T) {
	t.Parallel()
	clean := func(s string) string { return strings.ReplaceAll(s, "<", "&lt;") }
	for source, want := range map[string]string{
		`{{ urlUnescape "%3Cx" }}`:                               "&lt;x",
		`{{ $x := "PHg=" }}{{ b64dec $x }}{{ base64decode $x }}`: "&lt;x&lt;x",
		`{{ urlUnescape "<x" }}`:                                 "<x", // a text of the template itself
	} {
		if got, err := renderSource(t, source, Options{Clean: clean}); err != nil || got != want {
			t.Errorf("%s = %s, %v; want %s", source, got, err, want)
		}
	}
}

func TestRender_Numbers(t *testing.T) {
	t.Parallel()
	d := newSample("container.error")
	d.Notifications[0].Data = []byte(`{"topic":"container.error","object":{"id":"a","n":3,"f":1.5,` +
		`"big":123456789012345678901234567890,"l":["x",1]},"context":{"hub_id":"h"}}`)
	tmpl, err := Parse(`{{ eq .Data.object.n 3 }} {{ gt .Data.object.f 1.0 }} {{ .Data.object.big }} `+
		`{{ join "," .Data.object.l }} {{ toJson .Data.object.big }}`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := tmpl.Render(t.Context(), newData(t, d, nil))
	want := "true true 123456789012345678901234567890 x,1 123456789012345678901234567890"
	if err != nil || string(got) != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
}

// Concurrent renderings share no state.
func TestRender_Concurrent(t *testing.T) {
	t.Parallel()
	tmpl, err := Parse(`{{ define "x" }}{{ range . }}{{ . | toUpper }}{{ end }}{{ end }}`+
		`{{ range 50 }}{{ template "x" $.Context.Clusters }}{{ end }}`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				got, err := tmpl.Render(t.Context(), newData(t, newSample("container.error"), nil))
				if want := strings.Repeat("PRODUCTION", 50); err != nil || string(got) != want {
					t.Errorf("got %s, %v; want %s", got, err, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

// The end of the context is the only error that is retried.
func TestRender_ContextEnds(t *testing.T) {
	t.Parallel()
	tmpl, err := Parse(`{{ range 100000 }}{{ end }}`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	_, err = tmpl.Render(ctx, newData(t, newSample("job.created"), nil))
	if outcome, _ := relay.Classify(err); outcome != relay.OutcomeRetry || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v with outcome %s, want a retry", err, outcome)
	}
}

// If the samples take too long, the template is still valid: a busy machine must not reject its configuration.
func TestValidateSamples_Slow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rendered := 0
		s := Source{Key: "template", Text: "{{ now }}", Options: Options{Now: func() time.Time {
			rendered++
			time.Sleep(2 * time.Second)
			return time.Now()
		}}}
		list := samples.Deliveries([]string{"container.error", "container.state.changed", "job.new", "hub.error"})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := s.ValidateSamples(ctx, "hook", list); err != nil || rendered != 2 {
			t.Errorf("got error %v after %d samples, want none after 2", err, rendered)
		}
	})
}
