package setup

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"go/version"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"text/template"
)

//go:embed all:templates
var templates embed.FS

// module is the Go module that plugins import.
const module = "github.com/hubrelay/hubrelay"

// Plugin describes a plugin to create.
type Plugin struct {
	// Name is the name of the directory, the program and the sink.
	Name string
	// Language is one of [PluginLanguages].
	Language string
	// Version is the version of this program, which a plugin in Go requires.
	Version string
	// Replace is a directory with the source of hubrelay. A plugin in Go uses it instead of Version.
	Replace string
}

// PluginLanguages returns the languages of the skeletons.
func PluginLanguages() []string { return []string{"go", "python"} }

// ErrNoRelease is returned if the module of this version cannot be downloaded.
var ErrNoRelease = errors.New("this version is not a release, so its module cannot be downloaded: use a directory " +
	"with its source")

// Validate checks everything that can be checked before files are written.
func (p *Plugin) Validate() error {
	if !regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`).MatchString(p.Name) {
		return fmt.Errorf("%.80q is not a plugin name: use lower-case letters, digits and hyphens, and start with a "+
			"letter, as in instance-watch", p.Name)
	}
	switch {
	case p.Language == "python":
		if p.Replace != "" {
			return errors.New("a plugin in Python does not use the source of hubrelay")
		}
		return nil
	case p.Language != "go":
		return fmt.Errorf("the language %.80q is not supported: choose %s", p.Language,
			strings.Join(PluginLanguages(), " or "))
	case p.Replace == "":
		if !isRelease(p.Version) {
			return ErrNoRelease
		}
		return nil
	}
	file := filepath.Join(p.Replace, "go.mod")
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("find source of hubrelay: %w", err)
	}
	if !regexp.MustCompile(`(?m)^module ` + regexp.QuoteMeta(module) + `\s*$`).Match(text) {
		return fmt.Errorf("%s is not the module file of %s", file, module)
	}
	return nil
}

// isRelease reports whether the module is available in version v. It returns false for a version from git describe
// between two releases.
func isRelease(v string) bool {
	return regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`).MatchString(v) &&
		!regexp.MustCompile(`-\d+-g[0-9a-f]+$|-dirty$`).MatchString(v)
}

// Write writes the plugin to the directory Name in parent. If the directory exists, it must be empty.
func (p *Plugin) Write(parent string) error {
	if err := p.Validate(); err != nil {
		return err
	}
	dir := filepath.Join(parent, p.Name)
	if err := makeEmptyDir(dir); err != nil {
		return err
	}
	d, err := p.templateData()
	if err != nil {
		return err
	}
	root := path.Join("templates", p.Language)
	entries, err := templates.ReadDir(root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		text, err := templates.ReadFile(path.Join(root, e.Name()))
		if err != nil {
			return err
		}
		name, filled := strings.CutSuffix(e.Name(), ".tmpl")
		if filled {
			if text, err = renderTemplate(name, string(text), d); err != nil {
				return err
			}
		}
		if name == "gitignore" {
			name = ".gitignore"
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return fmt.Errorf("write plugin: %w", err)
		}
	}
	return p.copySums(dir)
}

// copySums copies go.sum from the source of hubrelay, so a build needs no checksum server.
func (p *Plugin) copySums(dir string) error {
	if p.Replace == "" {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(p.Replace, "go.sum"))
	if err != nil {
		return fmt.Errorf("read checksums: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.sum"), text, 0o644); err != nil {
		return fmt.Errorf("write plugin: %w", err)
	}
	return nil
}

// pluginData is the input of the templates.
type pluginData struct {
	Name, Version, Replace, Go string
}

func (p *Plugin) templateData() (pluginData, error) {
	d := pluginData{Name: p.Name, Version: p.Version, Go: strings.TrimPrefix(version.Lang(runtime.Version()), "go")}
	if p.Replace != "" {
		absolute, err := filepath.Abs(p.Replace)
		if err != nil {
			return pluginData{}, fmt.Errorf("find source of hubrelay: %w", err)
		}
		d.Version, d.Replace = "v0.0.0", absolute
	}
	return d, nil
}

func renderTemplate(name, text string, d pluginData) ([]byte, error) {
	t, err := template.New(name).Option("missingkey=error").Parse(text)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = t.Execute(&out, d)
	return out.Bytes(), err
}

// makeEmptyDir creates the directory, or checks that it is empty.
func makeEmptyDir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create plugin directory: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read plugin directory: %w", err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s exists and is not empty: choose another name", dir)
	}
	return nil
}
