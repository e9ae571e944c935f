package tmpl

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/samples"
)

// TestManual renders the examples in docs/templates.md and checks that it documents all functions and fields.
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
	documented := libraryNames()
	for _, m := range row.FindAllStringSubmatch(manual, -1) {
		documented = append(documented, m[1])
		source, want := strings.ReplaceAll(m[2], `\|`, "|"), strings.ReplaceAll(m[3], `\|`, "|")
		if got, err := renderSource(t, source, Options{Now: clock}); err != nil || got != want {
			t.Errorf("%s = %q, %v; the manual has %q", source, got, err, want)
		}
		if !strings.Contains(source, m[1]) {
			t.Errorf("the example %s does not call %s", source, m[1])
		}
	}
	for _, name := range []string{"print", "printf", "println", "html", "js", "urlquery"} {
		documented = append(documented, name)
		if !strings.Contains(manual, "`"+name+"`") {
			t.Errorf("the manual does not mention %s", name)
		}
	}
	slices.Sort(documented)
	for _, name := range functionNames() {
		if _, found := slices.BinarySearch(documented, name); !found {
			t.Errorf("the manual does not document %s", name)
		}
	}
	fields := fieldNames(reflect.TypeFor[Data]().String())
	if len(fields) == 0 {
		t.Error("got no names of fields")
	}
	for _, name := range fields {
		if !strings.Contains(manual, "`."+name) {
			t.Errorf("the manual does not document .%s", name)
		}
	}
	// The HTML example escapes the text of a producer.
	_, page, _ := strings.Cut(manual, "```html\n")
	page, _, _ = strings.Cut(page, "```")
	got, err := renderSource(t, page, Options{HTML: true})
	if err != nil || !strings.Contains(got, "&lt;none&gt; of 3") ||
		!strings.Contains(got, `href="https://portal.example.com/hubs/6922`) {
		t.Errorf("HTML example: got %s, %v", got, err)
	}
	// The digest example renders both a notification and a digest.
	_, example, _ := strings.Cut(manual, "is written like this:\n\n```\n")
	example, _, _ = strings.Cut(example, "```")
	tmpl, err := Parse(example, Options{})
	if err != nil {
		t.Fatal(err)
	}
	topics := []string{"container.error"}
	for _, d := range append(samples.Deliveries(topics), samples.Digest(topics)) {
		got, err := tmpl.Render(t.Context(), newData(t, d, nil))
		if err != nil || !strings.Contains(string(got), "Something went wrong") {
			t.Errorf("digest example: got %s, %v", got, err)
		}
	}
}
