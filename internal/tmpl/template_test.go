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

func one(topic string) relay.Delivery { return samples.Deliveries([]string{topic})[0] }

func dataOf(t testing.TB, d relay.Delivery, clean func(string) string) *Data {
	t.Helper()
	data, err := NewData(d, "hook", clean)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// rendered renders a source with a sample of container.error.
func rendered(t testing.TB, source string, o Options) (string, error) {
	t.Helper()
	tmpl, err := Parse(source, o)
	if err != nil {
		return "", err
	}
	out, err := tmpl.Render(context.Background(), dataOf(t, one("container.error"), o.Clean))
	return string(out), err
}

func TestRender(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ source, want string }{
		{"", ""},
		{"plain", "plain"},
		{"{{ .Topic }} {{ .Meaning }} {{ .Severity }} {{ .Sink }}", "container.error Something went wrong with a container as a whole bad hook"},
		{"{{ .Object.ID }} {{ .Context.HubID }} {{ index .Context.Containers 0 }}", "6922f0000123456789abcd01 6922f0000123456789abcd03 6922f0000123456789abcd02"},
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
		{`{{ .Time.Format "2006" }} {{ ((.Time.Add 0).UTC).Format "Jan" }} {{ with .Time }}{{ .Format "02" }}{{ end }}`, "2025 Nov 23"},
		{`{{ $t := .Time }}{{ if $t.Format "15" }}{{ "15:04" | $t.UTC.Format | toUpper }}{{ end }} {{ printf "%[1]s %[1]s" .Topic }}`, "11:29 container.error container.error"},
	} {
		if got, err := rendered(t, c.source, Options{}); err != nil || got != c.want {
			t.Errorf("%s gives %q, %v; want %q", c.source, got, err, c.want)
		}
	}
}

func TestWholeIsJSON(t *testing.T) {
	t.Parallel()
	want := string(one("container.error").Notifications[0].Data)
	for _, source := range []string{"{{ .Raw }}", "{{ . }}", "{{ toJson . }}", "{{ range .Notifications }}{{ . }}{{ end }}"} {
		if got, err := rendered(t, source, Options{}); err != nil || !sameJSON(t, got, want) {
			t.Errorf("%s gives %s, %v", source, got, err)
		}
	}
}

func TestDigest(t *testing.T) {
	t.Parallel()
	d := samples.Digest([]string{"container.error", "job.created"})
	const source = `{{ .Topic }} {{ .Digest.Count }} {{ .Digest.More }} {{ .Severity }} {{ len .Notifications }}` +
		`{{ range $topic, $n := .Digest.Topics }} {{ $topic }}={{ $n }}{{ end }} {{ .Digest.Last.Sub .Digest.First }}`
	tmpl, err := Parse(source, Options{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := tmpl.Render(t.Context(), dataOf(t, d, nil))
	if want := "hubrelay.digest 5 2 bad 3 container.error=4 job.created=1 10s"; err != nil || string(got) != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
	payload, err := d.Payload()
	if err != nil {
		t.Fatal(err)
	}
	if raw, err := dataOf(t, d, nil).Raw(); err != nil || raw != string(payload) {
		t.Errorf("%s, %v", raw, err)
	}
	// A batch is like a digest that lists all, one of a single notification too.
	d.Digest, d.Batch = nil, true
	if data := dataOf(t, d, nil); data.Digest.Count != 3 || data.Digest.Topics["job.created"] != 1 {
		t.Errorf("%+v", data.Digest)
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	clean := func(s string) string { return strings.NewReplacer("<", "&lt;", "&", "&amp;").Replace(s) }
	for _, source := range []string{"{{ .Object.Error }}", "{{ .Data.object.error }}", "{{ .Raw }}", "{{ toJson . }}", "{{ . }}"} {
		got, err := rendered(t, source, Options{Clean: clean})
		if err != nil || strings.Contains(got, "<none>") || strings.Contains(got, `\u003c`) || !strings.Contains(got, "&lt;none>") {
			t.Errorf("%s gives %s, %v", source, got, err)
		}
	}
}

// TestCleanNames has members whose names hold what is cleaned, and names that become one.
func TestCleanNames(t *testing.T) {
	t.Parallel()
	clean := func(s string) string { return strings.NewReplacer("<", "&lt;", "\u200b", "").Replace(s) }
	d := one("container.error")
	d.Notifications[0].Data = []byte(`{"topic":"container.error","object":{"id":"a","<!x>":{"<y>":1},"i\u200bd":"b","b\u200bc":1,"bc\u200b":2},"context":{"hub_id":"h"}}`)
	for source, want := range map[string]string{
		"{{ range $name, $value := .Data.object }}{{ $name }}={{ $value }} {{ end }}": "&lt;!x>=map[&lt;y>:1] bc=2 id=a ",
		"{{ toJson .Data.object }}": `{"&lt;!x>":{"&lt;y>":1},"bc":2,"id":"a"}`,
		"{{ .Raw }}":                `{"context":{"hub_id":"h"},"object":{"&lt;!x>":{"&lt;y>":1},"bc":2,"id":"a"},"topic":"container.error"}`,
		"{{ range .Notifications }}{{ len .Data.object }}{{ end }}": "3",
	} {
		tmpl, err := Parse(source, Options{Clean: clean})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tmpl.Render(t.Context(), dataOf(t, d, clean)); err != nil || string(got) != want {
			t.Errorf("%s gives %s, %v; want %s", source, got, err, want)
		}
	}
	if got, err := rendered(t, "{{ .Data.object.id }}", Options{}); err != nil || got != "6922f0000123456789abcd01" {
		t.Errorf("uncleaned: %s, %v", got, err)
	}
}

// TestCleanDecoded brings back by functions what is cleaned away.
func TestCleanDecoded(t *testing.T) {
	t.Parallel()
	clean := func(s string) string { return strings.ReplaceAll(s, "<", "&lt;") }
	for source, want := range map[string]string{
		`{{ urlUnescape "%3Cx" }}`:                               "&lt;x",
		`{{ $x := "PHg=" }}{{ b64dec $x }}{{ base64decode $x }}`: "&lt;x&lt;x",
		`{{ urlUnescape "<x" }}`:                                 "<x", // the template's own
	} {
		if got, err := rendered(t, source, Options{Clean: clean}); err != nil || got != want {
			t.Errorf("%s gives %s, %v; want %s", source, got, err, want)
		}
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	d := one("container.error")
	d.Notifications[0].Data = []byte(`{"topic":"container.error","object":{"id":"a","n":3,"f":1.5,"big":123456789012345678901234567890,"l":["x",1]},"context":{"hub_id":"h"}}`)
	tmpl, err := Parse(`{{ eq .Data.object.n 3 }} {{ gt .Data.object.f 1.0 }} {{ .Data.object.big }} {{ join "," .Data.object.l }} {{ toJson .Data.object.big }}`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := tmpl.Render(t.Context(), dataOf(t, d, nil))
	if want := "true true 123456789012345678901234567890 x,1 123456789012345678901234567890"; err != nil || string(got) != want {
		t.Errorf("%s, %v", got, err)
	}
}

// TestConcurrent shows that renderings share nothing.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	tmpl, err := Parse(`{{ define "x" }}{{ range . }}{{ . | toUpper }}{{ end }}{{ end }}{{ range 50 }}{{ template "x" $.Context.Clusters }}{{ end }}`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				got, err := tmpl.Render(t.Context(), dataOf(t, one("container.error"), nil))
				if want := strings.Repeat("PRODUCTION", 50); err != nil || string(got) != want {
					t.Errorf("%s, %v", got, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestEndOfContext is the one error that another attempt may not meet.
func TestEndOfContext(t *testing.T) {
	t.Parallel()
	tmpl, err := Parse(`{{ range 100000 }}{{ end }}`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	_, err = tmpl.Render(ctx, dataOf(t, one("job.created"), nil))
	if outcome, _ := relay.Classify(err); outcome != relay.OutcomeRetry || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v is %s", err, outcome)
	}
}

// A rehearsal that takes too long is no mistake of the template: a busy machine must not refuse its configuration.
func TestSlowRehearsal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rehearsed := 0
		s := Source{Key: "template", Text: "{{ now }}", Options: Options{Now: func() time.Time {
			rehearsed++
			time.Sleep(2 * time.Second)
			return time.Now()
		}}}
		list := samples.Deliveries([]string{"container.error", "container.state.changed", "job.new", "hub.error"})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := s.ValidateSamples(ctx, "hook", list); err != nil || rehearsed != 2 {
			t.Errorf("%d samples, %v", rehearsed, err)
		}
	})
}
