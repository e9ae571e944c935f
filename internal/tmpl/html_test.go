package tmpl

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

func TestParse_HTML(t *testing.T) {
	t.Parallel()
	const source = `<p title="{{ .Object.Error }}">{{ .Object.Error }}</p>` +
		`{{ range 2 }}<a href="{{ "javascript:x" }}" x={{ .}}>{{ end }}`
	got, err := renderSource(t, source, Options{HTML: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"&lt;none&gt;", `href="#ZgotmplZ" x=0>`} {
		if !strings.Contains(got, want) {
			t.Errorf("got %s, want it to contain %s", got, want)
		}
	}
	var m *TemplateError
	_, err = Parse("<p>\n<a href='{{ if .Topic }}'{{ end }}>", Options{HTML: true})
	if !errors.As(err, &m) || m.Line != 2 {
		t.Errorf("got error %v, want one in line 2", err)
	}
	for _, source := range []string{
		"\n{{ safeHtml .Object.Error }}",
		"\n{{ .Object.Error | safeUrl }}",
		"{{ if .Digest }}{{ else }}\n{{ with .Object }}{{ .ID | safeHtml }}{{ end }}{{ end }}",
	} {
		_, err := Parse(source, Options{HTML: true})
		if !errors.As(err, &m) || m.Line != 2 || !strings.Contains(err.Error(), "is not available in HTML") {
			t.Errorf("%s: got error %v", source, err)
		}
	}
}

// Values of a producer remain text in every context of HTML and after every function. An independent parser finds the
// same elements and attributes as for harmless values, and no link or script of the producer.
func TestRender_HostileHTML(t *testing.T) {
	t.Parallel()
	const attack = `</p><script>alert(1)</script>"'` + "`" +
		` onload=x javascript:alert(1) &lt; </style></title></textarea> --> x=y\u0000`
	values := []string{
		".Object.ID", ".Object.Error", ".Data.object.id", ".Raw", ".", "toJson .", ".Object.ID | toUpper",
		"printf `%s` .Object.ID", "html .Object.ID", ".Object.ID | html", "b64dec (b64enc .Object.ID)",
		"index (list .Object.ID) 0", `default .Object.ID ""`, "reReplaceAll `(.)` `$1` .Object.ID",
		"urlquery .Object.ID", "js .Object.ID",
	}
	for _, context := range []string{
		`<p>{{ X }}</p>`, `<p title="{{ X }}">`, `<p title='{{ X }}'>`, `<p title={{ X }}>`, `<p {{ X }}=1>`,
		`<a href="{{ X }}">`, `<a href="https://example.com/{{ X }}?{{ X }}">`, `<img src={{ X }}>`,
		`<p style="color:{{ X }}">`, `<style>p{color:{{ X }}}</style>`, `<title>{{ X }}</title>`,
		`<textarea>{{ X }}</textarea>`, `<!-- {{ X }} -->`, `<p onclick="f({{ X }})">`, `<script>f({{ X }})</script>`,
		`<{{ X }}>`, `{{ define "x" }}<b title="{{ X }}">{{ X }}</b>{{ end }}{{ template "x" . }}`,
		`{{ $x := X }}<i>{{ $x }}</i>`,
	} {
		for _, value := range values {
			source := strings.ReplaceAll(context, "X", value)
			tmpl, err := Parse(source, Options{HTML: true})
			if err != nil {
				continue // html/template rejects it as unsafe
			}
			want, got := parseTokens(t, tmpl, "abc", "abc"), parseTokens(t, tmpl, attack, "javascript:alert(1)")
			if !slices.Equal(got, want) {
				t.Errorf("%s: got %q for an attack, want %q", source, got, want)
			}
		}
	}
}

// parseTokens renders an object with the given ID and error, and returns the elements and attributes of the HTML.
func parseTokens(t *testing.T, tmpl *Template, id, problem string) []string {
	t.Helper()
	d := newSample("container.error")
	object, err := json.Marshal(map[string]string{"id": id, "error": problem})
	if err != nil {
		t.Fatal(err)
	}
	const format = `{"topic":"container.error","object":%s,"context":{"hub_id":"h"}}`
	d.Notifications[0].Data = fmt.Appendf(nil, format, object)
	out, err := tmpl.Render(t.Context(), newData(t, d, nil))
	if err != nil {
		t.Fatalf("%s: %v", tmpl.source, err)
	}
	var found []string
	for z := html.NewTokenizer(bytes.NewReader(out)); ; {
		kind := z.Next()
		if kind == html.ErrorToken {
			return found
		}
		token := z.Token()
		if kind == html.TextToken {
			continue
		}
		found = append(found, token.Type.String()+" "+token.Data)
		for _, a := range token.Attr {
			if a.Key == "href" || a.Key == "src" {
				isScript := strings.HasPrefix(strings.ToLower(strings.TrimSpace(a.Val)), "javascript:")
				found = append(found, fmt.Sprint(a.Key, " ", isScript))
			} else {
				found = append(found, "attribute")
			}
		}
	}
}
