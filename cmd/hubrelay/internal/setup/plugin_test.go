package setup

import (
	"bytes"
	"errors"
	"go/format"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// repositoryRoot is the path of the module from the directory of this test.
const repositoryRoot = "../../../.."

func TestPlugin_Validate(t *testing.T) {
	const root = repositoryRoot
	for name, c := range map[string]struct {
		p    Plugin
		want string
	}{
		"go":          {Plugin{Name: "a-1", Language: "go", Version: "v1.2.3"}, ""},
		"pre-release": {Plugin{Name: "a", Language: "go", Version: "v1.2.3-rc.1"}, ""},
		"pseudo":      {Plugin{Name: "a", Language: "go", Version: "v0.0.0-20261121185543-12876e9aabbc"}, ""},
		"source":      {Plugin{Name: "a", Language: "go", Version: "devel", Replace: root}, ""},
		"python":      {Plugin{Name: "a", Language: "python", Version: "devel"}, ""},
		"devel":       {Plugin{Name: "a", Language: "go", Version: "devel"}, "not a release"},
		"commit":      {Plugin{Name: "a", Language: "go", Version: "12876e9"}, "not a release"},
		"after a tag": {Plugin{Name: "a", Language: "go", Version: "v1.2.3-5-g12876e9"}, "not a release"},
		"dirty":       {Plugin{Name: "a", Language: "go", Version: "v1.2.3-dirty"}, "not a release"},
		"dirty module": {
			Plugin{Name: "a", Language: "go", Version: "v1.2.4-0.20261121185543-12876e9aabbc+dirty"},
			"not a release",
		},
		"no source": {
			Plugin{Name: "a", Language: "go", Replace: filepath.Join(root, "nowhere")},
			"find source of hubrelay",
		},
		"other source": {
			Plugin{Name: "a", Language: "go", Replace: filepath.Join(root, "relay", "bench")},
			"is not the module file of github.com/hubrelay/hubrelay",
		},
		"python, source":    {Plugin{Name: "a", Language: "python", Replace: root}, "does not use the source"},
		"no language":       {Plugin{Name: "a", Language: "cobol"}, `the language "cobol" is not supported: choose go or python`},
		"no name":           {Plugin{Language: "python"}, `"" is not a plugin name`},
		"upper case":        {Plugin{Name: "Watch", Language: "python"}, `"Watch" is not a plugin name`},
		"another directory": {Plugin{Name: "../a", Language: "python"}, `"../a" is not a plugin name`},
		"too long":          {Plugin{Name: strings.Repeat("a", 64), Language: "python"}, "is not a plugin name"},
	} {
		err := c.p.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if errors.Is(err, ErrNoRelease) != (c.want == "not a release") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Templates are rendered completely, and the Go code is formatted.
func TestPlugin_Write(t *testing.T) {
	for _, p := range []Plugin{
		{Name: "a", Language: "go", Version: "v1.2.3"},
		{Name: "instance-watch", Language: "go", Version: "devel", Replace: repositoryRoot},
		{Name: "b", Language: "python"},
	} {
		dir := t.TempDir()
		if err := p.Write(dir); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(dir, p.Name, "*"))
		if err != nil || len(files) < 5 {
			t.Fatal(files, err)
		}
		if _, err := os.Stat(filepath.Join(dir, p.Name, ".gitignore")); err != nil {
			t.Error(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(text, []byte("{{")) && !strings.HasSuffix(file, ".py") ||
				bytes.Contains(text, []byte("<no value>")) {
				t.Errorf("%s is not rendered completely:\n%s", file, text)
			}
			if filepath.Ext(file) != ".go" {
				continue
			}
			if formatted, err := format.Source(text); err != nil || !bytes.Equal(formatted, text) {
				t.Errorf("%s is not formatted (%v)", file, err)
			}
		}
	}
}

func TestPlugin_WriteToExistingDirectory(t *testing.T) {
	dir := t.TempDir()
	p := Plugin{Name: "a", Language: "python"}
	if err := os.Mkdir(filepath.Join(dir, "a"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := p.Write(dir); err != nil {
		t.Errorf("write to an empty directory: %v", err)
	}
	if err := p.Write(dir); err == nil || !strings.Contains(err.Error(), "exists and is not empty") {
		t.Errorf("write again: %v", err)
	}
	p.Name = "b"
	if err := os.WriteFile(filepath.Join(dir, "b"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Write(dir); err == nil || !strings.Contains(err.Error(), "read plugin directory") {
		t.Errorf("write to a file: %v", err)
	}
}

// A new plugin gets the code that protoc generated for the example.
func TestPlugin_GeneratedCodeMatchesExample(t *testing.T) {
	generated, err := filepath.Glob(filepath.Join(repositoryRoot, "examples", "plugin-python", "*_pb2*.py"))
	if err != nil || len(generated) != 4 {
		t.Fatal(generated, err)
	}
	for _, file := range generated {
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got, err := templates.ReadFile("templates/python/" + filepath.Base(file))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s differs from the example (%v): run make generate", filepath.Base(file), err)
		}
	}
}
