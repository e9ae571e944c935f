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

func TestHTML(t *testing.T) {
	t.Parallel()
	const source = `<p title="{{ .Object.Error }}">{{ .Object.Error }}</p>{{ range 2 }}<a href="{{ "javascript:x" }}" x={{ .}}>{{ end }}`
	got, err := rendered(t, source, Options{HTML: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"&lt;none&gt;", `href="#ZgotmplZ" x=0>`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s lacks %s", got, want)
		}
	}
	var m *TemplateError
	if _, err := Parse("<p>\n<a href='{{ if .Topic }}'{{ end }}>", Options{HTML: true}); !errors.As(err, &m) || m.Line != 2 {
		t.Errorf("%v", err)
	}
	for _, source := range []string{"\n{{ safeHtml .Object.Error }}", "\n{{ .Object.Error | safeUrl }}", `{{ if .Digest }}{{ else }}
{{ with .Object }}{{ .ID | safeHtml }}{{ end }}{{ end }}`} {
		if _, err := Parse(source, Options{HTML: true}); !errors.As(err, &m) || m.Line != 2 || !strings.Contains(err.Error(), "has no place where HTML is made") {
			t.Errorf("%s: %v", source, err)
		}
	}
}

// TestHostileHTML shows that whatever a producer writes stays a text, wherever in HTML it stands and whatever functions it went
// through: another parser finds the same elements and attributes as for a harmless value, and no address or script of the producer's.
func TestHostileHTML(t *testing.T) {
	t.Parallel()
	const attack = `</p><script>alert(1)</script>"'` + "`" + ` onload=x javascript:alert(1) &lt; </style></title></textarea> --> x=y\u0000`
	values := []string{
		".Object.ID", ".Object.Error", ".Data.object.id", ".Raw", ".", "toJson .", ".Object.ID | toUpper", "printf `%s` .Object.ID",
		"html .Object.ID", ".Object.ID | html", "b64dec (b64enc .Object.ID)", "index (list .Object.ID) 0", `default .Object.ID ""`,
		"reReplaceAll `(.)` `$1` .Object.ID", "urlquery .Object.ID", "js .Object.ID",
	}
	for _, place := range []string{
		`<p>{{ X }}</p>`, `<p title="{{ X }}">`, `<p title='{{ X }}'>`, `<p title={{ X }}>`, `<p {{ X }}=1>`, `<a href="{{ X }}">`,
		`<a href="https://example.com/{{ X }}?{{ X }}">`, `<img src={{ X }}>`, `<p style="color:{{ X }}">`, `<style>p{color:{{ X }}}</style>`,
		`<title>{{ X }}</title>`, `<textarea>{{ X }}</textarea>`, `<!-- {{ X }} -->`, `<p onclick="f({{ X }})">`, `<script>f({{ X }})</script>`,
		`<{{ X }}>`, `{{ define "x" }}<b title="{{ X }}">{{ X }}</b>{{ end }}{{ template "x" . }}`, `{{ $x := X }}<i>{{ $x }}</i>`,
	} {
		for _, value := range values {
			source := strings.ReplaceAll(place, "X", value)
			tmpl, err := Parse(source, Options{HTML: true})
			if err != nil {
				continue // html/template knows that it would not be safe
			}
			harmless, got := shape(t, tmpl, "abc", "abc"), shape(t, tmpl, attack, "javascript:alert(1)")
			if !slices.Equal(got, harmless) {
				t.Errorf("%s makes %q, and %q of an attack", source, harmless, got)
			}
		}
	}
}

// shape is what another parser finds in the HTML of an object with such an id and error.
func shape(t *testing.T, tmpl *Template, id, problem string) []string {
	t.Helper()
	d := one("container.error")
	object, err := json.Marshal(map[string]string{"id": id, "error": problem})
	if err != nil {
		t.Fatal(err)
	}
	d.Notifications[0].Data = fmt.Appendf(nil, `{"topic":"container.error","object":%s,"context":{"hub_id":"h"}}`, object)
	out, err := tmpl.Render(t.Context(), dataOf(t, d, nil))
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
				found = append(found, fmt.Sprint(a.Key, " ", strings.HasPrefix(strings.ToLower(strings.TrimSpace(a.Val)), "javascript:")))
			} else {
				found = append(found, "attribute")
			}
		}
	}
}
