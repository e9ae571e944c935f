package tmpl

import (
	"strings"
	"testing"
)

// TestActions shows that actions called here give what the library gives for them, and which those are.
func TestActions(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]int{
		`{{ .Topic }} {{- .Object.Error | toUpper | trunc 9 }} {{ .Hub }}`:                                        3,
		`{{ printf "%s: %s %d" .Meaning .Object.Error 7 | toJson }}{{ toJson .Context.Clusters }}`:                2,
		`{{ .Time | tz "Europe/Paris" | date "2006-01-02 15:04" }}{{ toJson .Time }}`:                             2,
		`{{ toJson (.Object.State | default "none") }}{{ join "," .Context.Containers }}`:                         2,
		`{{ if .Sample }}{{ .ID }}{{ else }}{{ .Object.Error | reReplaceAll "\\s+" " " }}{{ end }}`:               2,
		`{{ print .Topic 1 .Hub }}{{ html .Object.Error }}{{ .Topic | b64enc | b64dec | title }}`:                 3,
		`{{ "constant" }}{{ printf "%v %v" .Time .Context.Containers }}`:                                          2,
		`{{ .Time }}{{ .Context.Containers }}{{ .Data.topic }}{{ .Raw }}{{ . }}{{ $.Topic }}{{ 1 }}`:              0,
		`{{ with .Object }}{{ .State }}{{ end }}{{ range .Context.Clusters }}{{ . | toUpper }}{{ end }}`:          0,
		`{{ len .Topic }}{{ eq .Topic "x" }}{{ default 1 .Topic }}{{ stringSlice .Topic }}{{ trunc 1.0 .Topic }}`: 0,
		`{{ define "x" }}{{ .State }}{{ end }}{{ template "x" .Object }}{{ .Topic }}`:                             0,
		`{{ $x := .Topic }}{{ $x }}{{ $x = .Hub }}{{ $x }}`:                                                       0,
	} {
		tmpl, err := Parse(source, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := taken(tmpl); got != want {
			t.Errorf("%s has %d actions that are called here, not %d", source, got, want)
		}
		d := dataOf(t, one("container.error"), nil)
		for range 2 {
			got, err := tmpl.Render(t.Context(), d)
			m, same := tmpl.rerender(t.Context(), d, modeLibrary)
			if err != nil || same != nil || string(got) != string(m.run.out.text) {
				t.Errorf("%s gives %s, %v; the library alone %s, %v", source, got, err, m.run.out.text, same)
			}
		}
	}
}

func taken(t *Template) int {
	p, _ := t.parsed.(parsedText)
	return len(p.marks)
}

// TestActionsThatFail are worded by the library, with their place.
func TestActionsThatFail(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"{{ .Topic }}\n{{ tz \"Mars/Base\" .Time | date \"15\" }}":                "line 2, column 4: at tz \"Mars/Base\" .Time: tz: unknown time zone",
		"\n\n {{ .Topic | b64dec }}":                                              "line 3, column 14: at b64dec: b64dec: illegal base64",
		"{{ .Topic }}\n{{ printf \"%999999999d\" 1 }}":                            "line 2",
		"{{ if .Topic }}\n{{ .Object.Error | reReplaceAll \"(\" \"\" }}{{ end }}": "line 2, column 20",
		"{{ .Topic }}\n" + strings.Repeat("{{ printf \"%400000d\" 1 }}\n", 4):     "line 4: the output is longer",
	} {
		tmpl, err := Parse(source, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if taken(tmpl) == 0 {
			t.Errorf("%s has no action that is called here", source)
		}
		if _, err := tmpl.Render(t.Context(), dataOf(t, one("container.error"), nil)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", source, err, want)
		}
	}
}
