package main_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every line of the threat model names a test, and the tests that documents name exist.
func TestDocuments_NameTests(t *testing.T) {
	t.Parallel()
	tests := listTests(t)
	name := regexp.MustCompile("`(Test\\w+)(\\*?)`")
	for _, file := range []string{"SECURITY.md", "docs/testing.md"} {
		for _, n := range name.FindAllStringSubmatch(readDocument(t, file), -1) {
			if !tests[n[1]] && (n[2] == "" || !hasPrefix(tests, n[1])) {
				t.Errorf("%s: there is no test %s%s", file, n[1], n[2])
			}
		}
	}
	_, table, _ := strings.Cut(readDocument(t, "SECURITY.md"), "| who | may | may not | tests |")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(strings.TrimSpace(table), "\n")[1:]
	if len(rows) < 15 {
		t.Fatalf("the threat model has %d lines", len(rows))
	}
	for _, row := range rows {
		if !name.MatchString(row) {
			t.Errorf("no test holds %s", row)
		}
	}
}

func readDocument(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// listTests returns the names of all tests of the repository.
func listTests(t *testing.T) map[string]bool {
	t.Helper()
	tests := make(map[string]bool)
	declaration := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir(filepath.Join("..", ".."), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, found := range declaration.FindAllSubmatch(source, -1) {
			tests[string(found[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tests
}

func hasPrefix(names map[string]bool, prefix string) bool {
	return slices.ContainsFunc(slices.Collect(maps.Keys(names)), func(name string) bool { return strings.HasPrefix(name, prefix) })
}
