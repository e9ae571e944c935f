package tmpl

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

func sameJSON(t testing.TB, a, b string) bool {
	t.Helper()
	var x, y any
	return json.Unmarshal([]byte(a), &x) == nil && json.Unmarshal([]byte(b), &y) == nil && reflect.DeepEqual(x, y)
}

// hostileTemplate is a source and a part of its error.
type hostileTemplate struct{ source, want string }

// hostileTemplates returns templates that would run forever or use all memory without limits, and their errors.
func hostileTemplates() []hostileTemplate {
	return []hostileTemplate{
		{`{{ range 1000000000 }}{{ end }}`, "line 1: takes more than 5000 steps"},
		{"a\n{{ range 1000 }}\n{{ range 1000 }}{{ end }}{{ end }}", "line 3: takes more than"},
		{
			`{{ define "x" }}{{ template "x" }}{{ end }}` + "\n" + `{{ template "x" }}`,
			"line 1: templates call each other",
		},
		{
			`{{ define "a" }}{{ template "b" }}{{ end }}{{ define "b" }}{{ template "a" }}{{ end }}{{ template "a" }}`,
			"call each other",
		},
		{
			`{{ range 40000 }}0123456789012345678901234567890123456789{{ end }}`,
			"line 1: the output is longer than 1 MiB",
		},
		{"{{ $x := printf \"%500000d\" 1 }}\n{{ $x }}{{ $x }}\n{{ $x }}", "line 3: the output is longer"},
		{`{{ $x := printf "%1000000d" 1 }}` + strings.Repeat("{{ $x }}", 3000) + "\n", "line 1: the output is longer"},
		{`{{ printf "%1000000000d" 1 }}`, "width"},
		{`{{ printf "%999999d%999999d" 1 2 }}`, "widths"},
		{`{{ printf "%1000000v" (list 1 2 3) }}`, "widths"},
		{`{{ printf "%.300000d" (dict "a" (list 1) "b" (list 2 3)) }}`, "widths"},
		{"{{ printf \"%.1000000\x00\" . }}", "widths"},
		{`{{ printf "%.1000000000f" 1.5 }}`, "width"},
		{`{{ printf "%*d" 1000000 1 }}`, "write the number in place of the *"},
		{
			`{{ $x := "xxxxxxxxxxxxxxxx" }}{{ range 40 }}{{ $x = print $x $x }}{{ end }}`,
			"produces more than 1 MiB of text",
		},
		{
			`{{ $x := "x" }}{{ range 40 }}{{ $x = join $x (stringSlice $x $x $x) }}{{ end }}`,
			"produces more than 1 MiB of text",
		},
		{`{{ $x := list "x" }}{{ range 60 }}{{ $x = list $x $x }}{{ end }}{{ $x }}`, "reads more than 4 MiB"},
		{`{{ $x := dict "a" 1 }}{{ range 60 }}{{ $x = dict "a" $x "b" $x }}{{ end }}`, "reads more than 4 MiB"},
		{`{{ $x := list 1 }}{{ range 60 }}{{ $x = append $x $x $x }}{{ end }}{{ toJson $x }}`, "reads more than 4 MiB"},
		{`{{ $x := printf "%1000000d" 1 }}{{ range 1000 }}{{ $y := toUpper $x }}{{ end }}`, "read and write more than"},
		{
			`{{ $x := printf "%1000000d" 1 }}{{ range 1000 }}{{ $y := match "(a*)*b" $x }}{{ end }}`,
			"read and write more than",
		},
		{`{{ $x := printf "%100000d" 1 }}{{ $x = reReplaceAll "" "0123456789" $x }}`, "may produce more than"},
		{
			`{{ $x := printf "%200000d" 1 }}{{ $x = reReplaceAll ".*" "$0$0$0$0$0$0" $x }}`,
			"may produce more than",
		},
		{`{{ match "((a{100}){10}){10}" "a" }}`, "repeat"},
		{`{{ match "` + strings.Repeat("(x{900})", 100) + `" "x" }}`, "repeats too much"},
		{`{{ match "` + strings.Repeat("x", 2000) + `" "x" }}`, "pattern of more than"},
		{`{{ date "` + strings.Repeat("January", 1000) + `" .Time }}`, "layout of more than"},
		{`{{ range 40000 }}{{ $x := tz "Europe/Paris" $.Time }}{{ end }}`, "read and write more than"},
		{`{{ $x := "1" }}{{ range 24 }}{{ $x = $.Time.Format $x }}{{ end }}`, "layout of more than"},
		{`{{ $x := "1" }}{{ range 24 }}{{ $x = $x | (tz "UTC" $.Time).Format }}{{ end }}`, "layout of more than"},
		{`{{ $x := printf "%2000d" 1 }}{{ with .Time }}{{ $x = .Format $x }}{{ end }}`, "layout of more than"},
		{`{{ if .Time.AppendFormat .Time.MarshalText "1" }}{{ end }}`, "with Format"},
		{
			`{{ $x := printf "%1000000d" 1 }}{{ printf "` + strings.Repeat("%[1]s", 64) + `" $x }}`,
			"read and write more than",
		},
		{`{{ $x := printf "%1000000d" 1 }}{{ range 1000 }}{{ $y := trunc 1 $x }}{{ end }}`, "read and write more than"},
		{`{{ range 40000 }}{{ $x := toJson $ }}{{ $x = toJson $ }}{{ end }}`, "read and write more than"},
		{`{{ html (printf "%1000000s" "<") | html | js | urlquery | js | urlquery | urlquery }}`, "more than"},
		{`{{ slice .Topic 5 1 }}`, "slice"},
		{`{{ index .Topic 99 }}`, "shorter than that"},
		{`{{ call .Topic }}`, "non-function"},
	}
}

// lowerLimits returns limits for the hostile templates that need many iterations. TestRender_DefaultLimits tests the
// real limits.
func lowerLimits() map[string]limits {
	return map[string]limits{
		"a\n{{ range 1000 }}\n{{ range 1000 }}{{ end }}{{ end }}":                         {5_000, maxWork},
		`{{ range 1000000000 }}{{ end }}`:                                                 {5_000, maxWork},
		`{{ range 40000 }}{{ $x := tz "Europe/Paris" $.Time }}{{ end }}`:                  {maxSteps, 1 << 20},
		`{{ range 40000 }}{{ $x := toJson $ }}{{ $x = toJson $ }}{{ end }}`:               {maxSteps, 1 << 20},
		`{{ $x := printf "%1000000d" 1 }}{{ range 1000 }}{{ $y := trunc 1 $x }}{{ end }}`: {maxSteps, 4 << 20},
	}
}

func TestRender_DefaultLimits(t *testing.T) {
	t.Parallel()
	for source, isValid := range map[string]bool{
		`{{ range 49999 }}{{ end }}`: true, `{{ range 50000 }}{{ end }}`: false,
		`{{ $x := printf "%1048000d" 1 }}{{ range 6 }}{{ $y := toUpper $x }}{{ end }}`: true,
		`{{ $x := printf "%1048000d" 1 }}{{ range 8 }}{{ $y := toUpper $x }}{{ end }}`: false,
	} {
		_, err := renderSource(t, source, Options{})
		if isValid != (err == nil) {
			t.Errorf("%s: got error %v", source, err)
		}
		if err != nil && !strings.Contains(err.Error(), "50000 steps") && !strings.Contains(err.Error(), "16 MiB") {
			t.Errorf("%s: got error %v, want one about a limit", source, err)
		}
	}
}

func TestRender_HostileTemplates(t *testing.T) {
	t.Parallel()
	d := newSample("container.error")
	for _, test := range hostileTemplates() {
		source, want := test.source, test.want
		for _, html := range []bool{false, true} {
			tmpl, err := Parse(source, Options{HTML: html})
			if err != nil {
				continue // html/template rejects it
			}
			if lower, ok := lowerLimits()[source]; ok {
				tmpl.limits = lower
			}
			out, err := tmpl.Render(t.Context(), newData(t, d, nil))
			var m *TemplateError
			outcome, _ := relay.Classify(err)
			if err == nil || outcome != relay.OutcomePermanent || !errors.As(err, &m) || m.Line < 1 {
				t.Errorf("%.100s: got %s, %v, %d bytes", source, outcome, err, len(out))
				continue
			}
			if !html && !strings.Contains(err.Error(), want) {
				t.Errorf("%.100s: got error %v, want %s", source, err, want)
			}
			if strings.Contains(err.Error(), "_step") || strings.Contains(err.Error(), "_enter") {
				t.Errorf("error %v contains the name of an internal function", err)
			}
			if strings.Contains(err.Error(), errTime.Error()) {
				t.Errorf("%.100s: got error %v, want one before maxTime", source, err)
			}
		}
	}
}

func TestRender_TemplateErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ source, want string }{
		{"{{ .Object.Eror }}", `line 1, column 11: at .Object.Eror: there is no .Eror here; did you mean "Error"?`},
		{
			"\n\n  {{ .Foo }}",
			"line 3, column 6: at .Foo: there is no .Foo here; there are .Account, .Context, .Data, .Delivery, " +
				".Digest, .Hub, .ID, .Meaning, .Notifications, .Object, .Raw, .Sample, .Severity, .Sink, .Time, .Topic",
		},
		{"a\n{{ toUper .Topic }}", `line 2: there is no function "toUper"; did you mean "toUpper"?`},
		{"{{ _step }}", `line 1: there is no function "_step"; the functions are listed in docs/templates.md`},
		{"{{ if .Topic }}", "line 1: unexpected EOF; close what was opened: {{ end }}, or }}"},
		{"x\n{{ .Topic\n\n  ", "line 4: unclosed action started in line 2; close what was opened: {{ end }}, or }}"},
		{"x\n{{ .Topic", "line 2: unclosed action; close what was opened: {{ end }}, or }}"},
		{
			"{{ index .Context.DNSZones 0 }}",
			"line 1, column 4: at index .Context.DNSZones 0: the list is shorter than that; ask first whether",
		},
		{
			"{{ .Digest.Count }}",
			"line 1, column 11: at .Digest.Count: the value before it is missing; check it first",
		},
		{"{{ .Digest.By.hub }}", "the value before it is missing"},
		{
			`{{ tz "Mars/Base" .Time }}`,
			"at tz \"Mars/Base\" .Time: tz: unknown time zone Mars/Base: use a name such as Europe/Paris",
		},
		{`{{ template "x" . }}`, `define it`},
		{`{{ toUpper 3 }}`, "at 3: expected string"},
		{`{{ join "," .Topic }}`, "join: requires a list of strings, got string"},
		{`{{ dict "a" }}`, "dict: requires a value after every name"},
		{`{{ match "(" .Topic }}`, "missing closing )"},
		{strings.Repeat("x", maxSource+1), "is longer than 256 KiB"},
	} {
		_, err := renderSource(t, c.source, Options{})
		var m *TemplateError
		if !errors.As(err, &m) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60s:\n got %v\nwant %s", c.source, err, c.want)
		}
	}
}

// FuzzTemplate searches for templates that do not end, panic, or exceed the output limit.
func FuzzTemplate(f *testing.F) {
	for _, test := range hostileTemplates() {
		f.Add(test.source, false)
		f.Add(test.source, true)
	}
	f.Add(`{{ range $k, $v := .Data }}{{ $k }}{{ toJson $v }}{{ end }}`, false)
	d := newSample("container.error")
	f.Fuzz(func(t *testing.T, source string, html bool) {
		tmpl, err := Parse(source, Options{HTML: html})
		if err != nil {
			return
		}
		tmpl.limits = limits{1_000, 1 << 20}
		out, err := tmpl.Render(t.Context(), newData(t, d, nil))
		if err != nil && strings.Contains(err.Error(), errTime.Error()) {
			t.Errorf("%q: got error %v, want one before maxTime", source, err)
		}
		if len(out) > MaxOutput || err != nil && strings.Contains(err.Error(), "panicked") {
			t.Errorf("%q: got %d bytes, %v", source, len(out), err)
		}
	})
}

func BenchmarkRender(b *testing.B) {
	const source = `{"text": {{ printf "%s: %s" .Meaning (.Object.State | default "none") | toJson }},` +
		` "topic": "{{ .Topic | toUpper }}", "error": {{ .Object.Error | reReplaceAll "\\s+" " " | toJson }},` +
		` "at": "{{ .Time | tz "UTC" | date "2006-01-02 15:04" }}",` +
		` "where": [{{ range $i, $c := .Context.Containers }}{{ if $i }},{{ end }}{{ toJson $c }}{{ end }}],` +
		` "bad": {{ eq .Severity "bad" }}}`
	tmpl, err := Parse(source, Options{})
	if err != nil {
		b.Fatal(err)
	}
	d := newSample("container.error")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tmpl.Render(b.Context(), newData(b, d, nil)); err != nil {
			b.Fatal(err)
		}
	}
}
