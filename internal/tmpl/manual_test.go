package tmpl

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/samples"
)

// TestManual renders the examples of docs/templates.md, and looks for functions that it lacks.
func TestManual(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/templates.md")
	if err != nil {
		t.Fatal(err)
	}
	manual := string(text)
	clock := func() time.Time {
		return samples.Stored().Add(363*24*time.Hour + 12*time.Hour + 30*time.Minute + 56*time.Second)
	}
	row := regexp.MustCompile("(?m)^\\| `(\\w+)[^`]*` \\| .* \\| `(.*)` \\| `(.*)` \\|$")
	shown := libraryNames()
	for _, m := range row.FindAllStringSubmatch(manual, -1) {
		shown = append(shown, m[1])
		source, want := strings.ReplaceAll(m[2], `\|`, "|"), strings.ReplaceAll(m[3], `\|`, "|")
		if got, err := rendered(t, source, Options{Now: clock}); err != nil || got != want {
			t.Errorf("%s gives %q, %v; the manual says %q", source, got, err, want)
		}
		if !strings.Contains(source, m[1]) {
			t.Errorf("the example of %s is %s", m[1], source)
		}
	}
	for _, name := range []string{"print", "printf", "println", "html", "js", "urlquery"} {
		shown = append(shown, name)
		if !strings.Contains(manual, "`"+name+"`") {
			t.Errorf("the manual does not name %s", name)
		}
	}
	slices.Sort(shown)
	for _, name := range functionNames() {
		if _, found := slices.BinarySearch(shown, name); !found {
			t.Errorf("the manual lacks %s", name)
		}
	}
	for _, name := range fieldNames("templates.Data") {
		if !strings.Contains(manual, "`."+name) {
			t.Errorf("the manual lacks .%s", name)
		}
	}
	// The example of HTML escapes what a producer wrote.
	_, page, _ := strings.Cut(manual, "```html\n")
	page, _, _ = strings.Cut(page, "```")
	if got, err := rendered(t, page, Options{HTML: true}); err != nil || !strings.Contains(got, "&lt;none&gt; of 3") || !strings.Contains(got, `href="https://portal.example.com/hubs/6922`) {
		t.Errorf("%s, %v", got, err)
	}
	// The example of a digest renders both.
	_, example, _ := strings.Cut(manual, "is written like this:\n\n```\n")
	example, _, _ = strings.Cut(example, "```")
	tmpl, err := Parse(example, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range append(samples.Deliveries([]string{"container.error"}), samples.Digest([]string{"container.error"})) {
		if got, err := tmpl.Render(t.Context(), dataOf(t, d, nil)); err != nil || !strings.Contains(string(got), "Something went wrong") {
			t.Errorf("%s, %v", got, err)
		}
	}
}
