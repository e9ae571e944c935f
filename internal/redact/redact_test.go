package redact

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
)

func TestSecrets_Text(t *testing.T) {
	t.Parallel()
	const secret = "s3cret+&/\"ü?"
	s := New("Bearer", "abc", "s3cret", secret)
	for in, want := range map[string]string{
		"Bearer abc":                                 "Bearer abc",
		"rejected " + secret + ".":                   "rejected " + Replacement + ".",
		"form " + url.QueryEscape(secret):            "form " + Replacement,
		"path " + url.PathEscape(secret):             "path " + Replacement,
		"URL s3cret%2b%26%2f%22%c3%bc%3f":            "URL " + Replacement,
		`JSON s3cret+&\/\"ü?`:                        "JSON " + Replacement,
		`JSON s3cret+\u0026/\"ü?`:                    "JSON " + Replacement,
		`quoted s3cret+&/\"ü?`:                       "quoted " + Replacement,
		`.NET s3cret\u002B\u0026\u002F\u0022\u00FC?`: ".NET " + Replacement,
		"HTML s3cret+&amp;/&quot;ü?!":                "HTML " + Replacement + "!",
		"template s3cret&#43;&amp;/&#34;&#xFC;?":     "template " + Replacement,
		"all " + escapeAll(secret, `\u%04x`):         "all " + Replacement,
		"100 % s3cre&quot;":                          "100 % s3cre&quot;",
		"only a part: s3cret":                        "only a part: " + Replacement,
		"s3cre":                                      "s3cre",
		strings.Repeat(secret, 2) + " twice":         Replacement + Replacement + " twice",
	} {
		if got := s.Text(in); got != want {
			t.Errorf("Text(%q): got %q, want %q", in, got, want)
		}
	}
}

// escapeAll formats each character.
func escapeAll(text, format string) string {
	var b strings.Builder
	for _, r := range text {
		fmt.Fprintf(&b, format, r)
	}
	return b.String()
}

func TestSecrets_Base64(t *testing.T) {
	t.Parallel()
	const secret = "pa55w0rd>>?"
	s := New(secret)
	for _, user := range []string{"", "a", "ab", "abc", "user:"} {
		for _, after := range []string{"", "x", "xy"} {
			for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.RawURLEncoding} {
				text := encoding.EncodeToString([]byte(user + secret + after))
				if got := s.Text("Basic " + text); !strings.Contains(got, Replacement) || len(got)-len(Replacement) > len("Basic ")+len(user+after)*4/3+7 {
					t.Errorf("%q with the secret in base64: got %q", user+"…"+after, got)
				}
			}
		}
	}
}

func TestSecrets_Truncated(t *testing.T) {
	t.Parallel()
	s := New("s3cret-token", "abcd+abcdXYZ")
	for in, want := range map[string]string{
		"it has s3cret-to":    "it has " + Replacement,
		"it has s3cret-token": "it has " + Replacement,
		"it has s3c":          "it has s3c",
		`it has s3cret\u002`:  "it has " + Replacement,
		`it has s3cret\u002d`: "it has " + Replacement,
		"it has s3cret%2":     "it has " + Replacement,
		"it has s3c%2":        "it has s3c%2",
		"it has abcd+abcd":    "it has " + Replacement, // in a URL, +abcd would be another form
	} {
		if got := s.Truncated(in); got != want {
			t.Errorf("Truncated(%q): got %q, want %q", in, got, want)
		}
	}
}

func TestSecrets_Error(t *testing.T) {
	t.Parallel()
	s := New("s3cret")
	plain := errors.New("no route")
	if got := s.Error(plain); got != plain { //nolint:errorlint // the same error
		t.Errorf("got %v, want the error itself", got)
	}
	if got := s.Error(errors.New("status s3cret")); got.Error() != "status "+Replacement {
		t.Errorf("got %v", got)
	}
	long := errors.New(strings.Repeat("x", maxErrorLength-3) + "s3cret" + strings.Repeat(`\x01`, 1<<16))
	if got := s.Error(long).Error(); len(got) != maxErrorLength || strings.Contains(got, "s3c") {
		t.Errorf("got %d bytes that end with %q, want %d without the secret", len(got), got[len(got)-10:], maxErrorLength)
	}
	if got := (Secrets{}).MaxLength(); got != 0 {
		t.Errorf("no secrets: got length %d", got)
	}
}

func TestSecrets_Prefix(t *testing.T) { //nolint:paralleltest // it counts allocations
	s := New("s3cret-token")
	rest := strings.Repeat("%73", 1<<20)
	for in, want := range map[string]string{
		"":                         "",
		"s3cret-token":             Replacement,
		"short s3cret-token":       "short (redacte",
		"0123456789s3cret-token":   "0123456789(red",
		"0123456789\xff\xff":       "0123456789",
		"01234s3cret-token" + rest: "01234(redacted",
		rest:                       "%73%73%73%73%7",
	} {
		if got := s.Prefix(in, 14); got != want {
			t.Errorf("Prefix(%.40q): got %q, want %q", in, got, want)
		}
	}
	if n := testing.AllocsPerRun(1, func() { s.Prefix(rest, 14) }); n > 1000 {
		t.Errorf("got %.0f allocations for the beginning of a long text", n)
	}
}

func TestRecent(t *testing.T) {
	t.Parallel()
	var r Recent
	if got := r.All().Text("a"); got != "a" {
		t.Errorf("no secrets: got %q", got)
	}
	for i := range maxRecent + 1 {
		r.Add(New(fmt.Sprintf("s3cret-%c", 'a'+i), "shared"))
		r.Add(New("s3cret-" + string(rune('a'+i))))
		r.Add(Secrets{})
	}
	r.Add(New("s3cret-f", "shared")) // the oldest, which becomes the newest
	all := r.Add(New("another"))
	for text, want := range map[string]string{
		"s3cret-i, s3cret-h and another": "(redacted), (redacted) and (redacted)",
		"s3cret-f and s3cret-a":          "(redacted) and s3cret-a",
		"shared":                         Replacement,
	} {
		if got := all.Text(text); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}
