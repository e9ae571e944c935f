package relay

import (
	"errors"
	"regexp"
	"strings"
	"testing"
)

func TestPatterns_Match(t *testing.T) {
	for _, tc := range []struct {
		list  string
		topic string
		want  bool
	}{
		{"", "container.created", true},
		{"*", "container.created", true},
		{"container.created", "container.created", true},
		{"container.created", "container.created.twice", false},
		{"container.*", "container.created", true},
		{"container.*", "container.instance.state.changed", true},
		{"container.*", "container.", true},
		{"container.*", "container", false},
		{"container*", "container", true},
		{"*.error", "job.error", true},
		{"*.error", "error", false},
		{"*.error", "job.error.changed", false},
		{"container.*.changed", "container.instance.health.status.changed", true},
		{"container.*.changed", "container.changed", false},
		{"a*a", "a", false},
		{"a*a", "aa", true},
		{"a*ab*b", "aabb", true},
		{"a*ab*b", "aab", false},
		{"**", "job.created", true},
		{"!*.error", "job.created", true},
		{"!*.error", "job.error", false},
		{"container.* !*.error", "container.error", false},
		{"!*.error container.*", "container.error", false},
		{"!*.error container.*", "container.created", true},
		{"!*.error container.*", "job.created", false},
		{"!*", "job.created", false},
		{"", "hubrelay.sink.disabled", false},
		{"*", "hubrelay.sink.disabled", false},
		{"hubrelay*", "hubrelay.sink.disabled", false},
		{"*.disabled", "hubrelay.sink.disabled", false},
		{"!job.*", "hubrelay.sink.disabled", false},
		{"hubrelay.*", "hubrelay.sink.disabled", true},
		{"hubrelay.*", "job.created", false},
		{"hubrelay.sink.disabled", "hubrelay.sink.disabled", true},
		{"hubrelay.* !hubrelay.sink.*", "hubrelay.sink.disabled", false},
		{"hubrelay.* !*.disabled", "hubrelay.sink.disabled", false},
		{"hubrelay.* *", "job.created", true},
	} {
		p, err := ParsePatterns(strings.Fields(tc.list))
		if err != nil {
			t.Fatalf("%q: %v", tc.list, err)
		}
		if got := p.Match(tc.topic); got != tc.want {
			t.Errorf("%q on %q: %v", tc.list, tc.topic, got)
		}
	}
}

func TestParsePatterns_RejectsInvalid(t *testing.T) {
	for _, tc := range []struct{ pattern, want string }{
		{"", `topic pattern "" is empty`},
		{"!", "excludes nothing"},
		{"!!a", "the character '!'"},
		{"a!b", "the character '!'"},
		{"container created", "the character ' '"},
		{"container.created ", "the character ' '"},
		{"Container.*", "the character 'C'"},
		{"container.?", "the character '?'"},
		{"a\x00b", "the character"},
		{"a\xffb", "the character"},
		{strings.Repeat("a", 257), "longer than 256 bytes"},
	} {
		_, err := ParsePatterns([]string{"*", tc.pattern})
		var bad *PatternError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: got %v, want %q in it", tc.pattern, err, tc.want)
		} else if bad.Index != 1 || bad.Pattern != tc.pattern {
			t.Errorf("%q: the error names index %d, pattern %q", tc.pattern, bad.Index, bad.Pattern)
		}
	}
}

func TestCatalog_CheckPatterns(t *testing.T) {
	c := newCatalog(t, "backup.finished")
	for _, list := range [][]string{
		nil,
		{"*"},
		{"*.error", "!container.*"},
		{"backup.*"},
		{"container.created"},
		{"hubrelay.*"},
		{"hubrelay.sink.disabled", "!hubrelay.*.created"},
	} {
		if err := c.CheckPatterns(list); err != nil {
			t.Errorf("%q: %v", list, err)
		}
	}
	for pattern, want := range map[string]string{
		"contaner.created": `topic pattern "contaner.created" matches no topic; the nearest topic is ` +
			`container.created`,
		"!*.eror":    `topic pattern "!*.eror" matches no topic; the nearest topic is billing.credit.error`,
		"contaner.*": `topic pattern "contaner.*" matches no topic; the nearest topic is container.created`,
		"hubrelay.sink.disabeld": `topic pattern "hubrelay.sink.disabeld" matches no topic; the nearest topic is ` +
			`hubrelay.sink.disabled`,
		"!hubrelay.dead.*": `topic pattern "!hubrelay.dead.*" matches no topic; the nearest topic is ` +
			`hubrelay.deadletter.created`,
		"hubrely.*": `topic pattern "hubrely.*" matches no topic; the nearest topic is ` +
			`hubrelay.sink.disabled`,
		"zzz.*": `topic pattern "zzz.*" matches no topic; 'hubrelay topics' lists all`,
		"a b": `topic pattern "a b" has the character ' '; use a-z, 0-9, dot, underscore, ` +
			`hyphen, * and a leading !`,
	} {
		err := c.CheckPatterns([]string{"job.*", pattern})
		if err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", pattern, err, want)
		}
	}
}

func TestPatterns_String(t *testing.T) {
	for _, tc := range []struct {
		list []string
		want string
	}{{nil, "*"}, {[]string{"*.error", "!job.*"}, "*.error,!job.*"}} {
		p, err := ParsePatterns(tc.list)
		if err != nil || p.String() != tc.want {
			t.Errorf("%q: %q, %v", tc.list, p, err)
		}
	}
}

// FuzzPattern compares the matcher with package regexp, which is also linear but works differently.
func FuzzPattern(f *testing.F) {
	for _, seed := range [][2]string{
		{"*", "a"},
		{"a*b", "ab"},
		{"*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaa"},
		{"a*ab*b", "aabb"},
		{"!*.error", "job.error"},
		{"ab*ba", "aba"},
		{"**", ""},
		{"hubrelay.*", "hubrelay.x"},
		{"hubrelay*", "hubrelay.x"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, text, topic string) {
		p, err := ParsePatterns([]string{text})
		if err != nil {
			return
		}
		body, excluded := strings.CutPrefix(text, "!")
		re := regexp.MustCompile(`(?s)\A` + strings.ReplaceAll(regexp.QuoteMeta(body), `\*`, `.*`) + `\z`)
		want := re.MatchString(topic) != excluded
		if strings.HasPrefix(topic, OperationalPrefix) && (excluded || !strings.HasPrefix(body, OperationalPrefix)) {
			want = false
		}
		if got := p.Match(topic); got != want {
			t.Errorf("%q on %q: %v, want %v", text, topic, got, want)
		}
	})
}

func BenchmarkPatternsMatch(b *testing.B) {
	hostile, err := ParsePatterns([]string{strings.Repeat("*a", 100) + "*b*"})
	if err != nil {
		b.Fatal(err)
	}
	usual, err := ParsePatterns([]string{"container.instance.*", "*.error", "!billing.*"})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("usual", func(b *testing.B) {
		for b.Loop() {
			usual.Match("container.instance.health.status.changed")
		}
	})
	topic := strings.Repeat("a", 250)
	b.Run("hostile", func(b *testing.B) {
		for b.Loop() {
			hostile.Match(topic)
		}
	})
}
