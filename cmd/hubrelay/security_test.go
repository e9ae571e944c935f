package main_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every line of the threat model names tests that exist.
func TestSecurity_NamesTests(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	tests := make(map[string]bool)
	declaration := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
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
	_, table, _ := strings.Cut(string(text), "| who | may | may not | tests |")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(strings.TrimSpace(table), "\n")[1:]
	if len(rows) < 15 {
		t.Fatalf("the threat model has %d lines", len(rows))
	}
	name := regexp.MustCompile("`(Test\\w+)`")
	for _, row := range rows {
		names := name.FindAllStringSubmatch(row, -1)
		if len(names) == 0 {
			t.Errorf("no test holds %s", row)
		}
		for _, n := range names {
			if !tests[n[1]] {
				t.Errorf("there is no test %s", n[1])
			}
		}
	}
}
