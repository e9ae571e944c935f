package yamldoc

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"github.com/goccy/go-yaml"
)

func TestFromJSON(t *testing.T) {
	t.Parallel()
	const in = `{"name":"a b","empty":{},"none":[],"list":[1,"x",{"a":1.50,"b":[true,null]},[["deep"]]],"o":{"k":{"l":"no"}}}`
	const want = `name: a b
empty: {}
none: []
list:
  - 1
  - x
  - a: 1.50
    b:
      - true
      - null
  - - - deep
o:
  k:
    l: "no"
`
	got, err := FromJSON([]byte(in))
	if err != nil || string(got) != want {
		t.Errorf("got\n%s\n%v, want\n%s", got, err, want)
	}
	for in, want := range map[string]string{`"x"`: "x\n", `[]`: "[]\n", `7`: "7\n", `[{"a":1}]`: "- a: 1\n"} {
		if got, err := FromJSON([]byte(in)); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v, want %q", in, got, err, want)
		}
	}
	nested := strings.Repeat(`{"a":[`, 1000) + `"\u009b"` + strings.Repeat(`]}`, 1000)
	text, err := FromJSON([]byte(nested))
	var back, wantValue any
	if err != nil || len(text) > 10*len(nested) || yaml.Unmarshal(text, &back) != nil ||
		json.Unmarshal([]byte(nested), &wantValue) != nil || !reflect.DeepEqual(back, wantValue) {
		t.Errorf("a deep value: got %d bytes, %v", len(text), err)
	}
	if _, err := FromJSON([]byte(`{"a":`)); err == nil {
		t.Error("incomplete JSON: got no error")
	}
}

// Texts stay what they are, and nothing controls the terminal that shows them.
func TestFromJSON_HostileTexts(t *testing.T) {
	t.Parallel()
	texts := []string{
		"", " ", "~", "null", "Yes", ".inf", "12:30:45", "1e3", "0x10", "<<", "=", "- a", "? a", "a: b", "a #b", "\t", "a\r b", "\n lead",
		"%a", "@a", "`a", "'a'", `"a"`, `\x`, "&a", "*a", "!a", "|", ">", "{a", "[a", "é ü 世界 😀", "---", "...", "2026-11-27", "a ", "\ufeff",
		"\u2028", "\u0085", "\u009b0m", "\u202e", "\U000e0041", "\x1b]0;title\x07",
	}
	for r := range rune(0x20) {
		texts = append(texts, "a"+string(r)+"b")
	}
	in, err := json.Marshal(map[string]any{"list": texts})
	if err != nil {
		t.Fatal(err)
	}
	out, err := FromJSON(in)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range string(out) {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Errorf("got the character %U", r)
		}
	}
	var back struct{ List []string }
	if err := yaml.Unmarshal(out, &back); err != nil {
		t.Fatal(err)
	}
	for i := range texts {
		if i >= len(back.List) || back.List[i] != texts[i] {
			t.Errorf("%q: got %q", texts[i], strings.Join(back.List[i:min(i+1, len(back.List))], ""))
		}
	}
	if !reflect.DeepEqual(back.List, texts) {
		t.Errorf("got %d texts, want %d", len(back.List), len(texts))
	}
}
