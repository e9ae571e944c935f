package term

import "testing"

func TestSanitize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"grüße, 世界":          "grüße, 世界",
		"\x1b[31mred\x07\n":  "\uFFFD[31mred\uFFFD\uFFFD",
		"C1 \u009b31m":       "C1 \uFFFD31m",
		"abc\u202edef\u2066": "abc\uFFFDdef\uFFFD", // right-to-left override and isolate
		"prod\u200b\ufeff":   "prod\uFFFD\uFFFD",
		"\u3164\u034f":       "\uFFFD\uFFFD",
		"\u0600\u0661":       "\u0600\u0661", // a visible mark before a number
		"\u200fmark\u061c":   "\uFFFDmark\uFFFD",
		"line\u2028end\x7f":  "line\uFFFDend\uFFFD",
	} {
		if got := Sanitize(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
