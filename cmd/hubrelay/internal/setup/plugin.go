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

// module is what a plugin in Go is built with.
const module = "github.com/hubrelay/hubrelay"

// Plugin says what to write.
type Plugin struct {
	// Name is the name of the folder, the program and the sink.
	Name string
	// Language is one of PluginLanguages.
	Language string
	// Version is the version of this daemon, of which a plugin in Go needs the module.
	Version string
	// Replace is a folder with the source of hubrelay, for a plugin in Go to be built with instead.
	Replace string
}

// PluginLanguages are those that there are skeletons in.
func PluginLanguages() []string { return []string{"go", "python"} }

// ErrNoRelease says that there is no module of this daemon's version.
var ErrNoRelease = errors.New("this hubrelay is not a release, so that its module cannot be downloaded: name a " +
	"folder with its source")

// Validate tells what cannot be written, before anything is.
func (p *Plugin) Validate() error {
	if !regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`).MatchString(p.Name) {
		return fmt.Errorf("%.80q is no name for a plugin: begin with a letter, then letters, digits and hyphens, "+
			"all in lower case, such as instance-watch", p.Name)
	}
	switch {
	case p.Language == "python":
		if p.Replace != "" {
			return errors.New("a plugin in Python is not built with the source of hubrelay")
		}
		return nil
	case p.Language != "go":
		return fmt.Errorf("there is no skeleton in %.80q: choose %s", p.Language,
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
		return fmt.Errorf("look for the source of hubrelay: %w", err)
	}
	if !regexp.MustCompile(`(?m)^module ` + regexp.QuoteMeta(module) + `\s*$`).Match(text) {
		return fmt.Errorf("%s is not that of %s", file, module)
	}
	return nil
}

// isRelease tells whether the module can be had in this version: what git describes between two releases cannot.
func isRelease(v string) bool {
	return regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`).MatchString(v) &&
		!regexp.MustCompile(`-\d+-g[0-9a-f]+$|-dirty$`).MatchString(v)
}

// Write writes the plugin into the folder Name in parent. One that exists must be empty.
func (p *Plugin) Write(parent string) error {
	if err := p.Validate(); err != nil {
		return err
	}
	dir := filepath.Join(parent, p.Name)
	if err := makeEmptyDir(dir); err != nil {
		return err
	}
	d, err := p.data()
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
			return fmt.Errorf("write the plugin: %w", err)
		}
	}
	return p.copySums(dir)
}

// copySums takes over what the source of hubrelay knows of the modules that it needs, so that nobody has to be asked.
func (p *Plugin) copySums(dir string) error {
	if p.Replace == "" {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(p.Replace, "go.sum"))
	if err != nil {
		return fmt.Errorf("read the checksums of what hubrelay needs: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.sum"), text, 0o644); err != nil {
		return fmt.Errorf("write the plugin: %w", err)
	}
	return nil
}

// data is what templates are filled with.
type pluginData struct {
	Name, Version, Replace, Go string
}

func (p *Plugin) data() (pluginData, error) {
	d := pluginData{Name: p.Name, Version: p.Version, Go: strings.TrimPrefix(version.Lang(runtime.Version()), "go")}
	if p.Replace != "" {
		absolute, err := filepath.Abs(p.Replace)
		if err != nil {
			return pluginData{}, fmt.Errorf("find the source of hubrelay: %w", err)
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

// makeEmptyDir makes the folder, or makes sure that nothing is in it.
func makeEmptyDir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the plugin's folder: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look into the plugin's folder: %w", err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s is there already and not empty: choose another name", dir)
	}
	return nil
}
