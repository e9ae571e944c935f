package tmpl

import (
	"errors"
	"strings"
	"testing"
)

func TestRender_Functions(t *testing.T) {
	t.Parallel()
	const hub, container = "6922f0000123456789abcd03", "6922f0000123456789abcd02"
	for _, c := range []struct{ source, want string }{
		{`{{ .Topic }} {{- .Object.Error | toUpper | trunc 9 }} {{ .Hub }}`, "container.errorPULL: IMA " + hub},
		{
			`{{ printf "%s: %s %d" .Meaning .Object.Error 7 | toJson }}{{ toJson .Context.Clusters }}`,
			`"Something went wrong with a container as a whole: pull: image \"app:1.2\" not found & <none> of 3 ` +
				`mirrors has it\n\tgave up after 30s 7"["production"]`,
		},
		{
			`{{ .Time | tz "Europe/Paris" | date "2006-01-02 15:04" }}{{ toJson .Time }}`,
			`2025-11-23 12:29"2025-11-23T11:29:04Z"`,
		},
		{`{{ toJson (.Object.State | default "none") }}{{ join "," .Context.Containers }}`, `"none"` + container},
		{
			`{{ if .Sample }}{{ .ID }}{{ else }}{{ .Object.Error | reReplaceAll "\\s+" " " }}{{ end }}`,
			`pull: image "app:1.2" not found & <none> of 3 mirrors has it gave up after 30s`,
		},
		{
			`{{ print .Topic 1 .Hub }}{{ html .Object.Error }}{{ .Topic | b64enc | b64dec | title }}`,
			"container.error1" + hub + "pull: image &#34;app:1.2&#34; not found &amp; &lt;none&gt; of 3 " +
				"mirrors has it\n\tgave up after 30sContainer.error",
		},
		{
			`{{ "constant" }}{{ printf "%v %v" .Time .Context.Containers }}`,
			"constant2025-11-23 11:29:04 +0000 UTC [" + container + "]",
		},
		{
			`{{ .Time }}{{ .Context.Containers }}{{ .Data.topic }}{{ $.Topic }}{{ 1 }}`,
			"2025-11-23 11:29:04 +0000 UTC[" + container + "]container.errorcontainer.error1",
		},
		{
			`{{ with .Object }}{{ .State }}{{ end }}{{ range .Context.Clusters }}{{ . | toUpper }}{{ end }}`,
			"PRODUCTION",
		},
		{
			`{{ len .Topic }}{{ eq .Topic "x" }}{{ default 1 .Topic }}{{ stringSlice .Topic }}{{ trunc 1.0 .Topic }}`,
			"15falsecontainer.error[container.error]c",
		},
		{`{{ define "x" }}{{ .State }}{{ end }}{{ template "x" .Object }}{{ .Topic }}`, "container.error"},
		{`{{ $x := .Topic }}{{ $x }}{{ $x = .Hub }}{{ $x }}`, "container.error" + hub},
	} {
		if got, err := renderSource(t, c.source, Options{}); err != nil || got != c.want {
			t.Errorf("%s = %q, %v; want %q", c.source, got, err, c.want)
		}
	}
}

// The error of a function names the line and column of its call.
func TestRender_FunctionErrorsHavePosition(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ source, want string }{
		{
			"{{ .Topic }}\n{{ tz \"Mars/Base\" .Time | date \"15\" }}",
			"line 2, column 4: at tz \"Mars/Base\" .Time: tz: unknown time zone",
		},
		{"\n\n {{ .Topic | b64dec }}", "line 3, column 14: at b64dec: b64dec: illegal base64"},
		{"{{ .Topic }}\n{{ printf \"%999999999d\" 1 }}", "line 2"},
		{"{{ if .Topic }}\n{{ .Object.Error | reReplaceAll \"(\" \"\" }}{{ end }}", "line 2, column 20"},
		{"{{ .Topic }}\n" + strings.Repeat("{{ printf \"%400000d\" 1 }}\n", 4), "line 4: the output is longer"},
	} {
		_, err := renderSource(t, c.source, Options{})
		if !errors.As(err, new(*TemplateError)) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %s", c.source, err, c.want)
		}
	}
}
