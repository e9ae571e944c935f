package setup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"

	_ "embed"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/internal/yamldoc"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/daemon"
)

//go:embed templates/config.yaml.tmpl
var configTemplate string

// Options are the settings of a new configuration.
type Options struct {
	File, Listen, Redis string
	Force               bool // overwrite a file
	Version             string
	Kinds               daemon.Kinds
}

// Config is a configuration that is not written yet.
type Config struct {
	Options
	Key   string
	sinks []*sinkDraft
}

// New returns a configuration with a new API key and no sinks. It fails if the file exists, unless o.Force is set.
func New(o Options) (*Config, error) {
	if _, err := os.Lstat(o.File); err == nil && !o.Force {
		return nil, &existsError{o.File}
	}
	return &Config{Options: o, Key: apikey.New()}, nil
}

// sinkDraft is a sink of the configuration.
type sinkDraft struct {
	name            string
	kind            relay.SinkKind
	settings        []setting
	generatedSecret string // empty if the user set secrets
}

// newSink returns a sink without settings. It fails if the type is unknown.
func (c *Config) newSink(kind string) (*sinkDraft, error) {
	var types []string
	for _, k := range c.Kinds.Sinks {
		if k.Type == kind {
			return &sinkDraft{kind: k}, nil
		}
		types = append(types, k.Type)
	}
	hint := yamldoc.DidYouMean(kind, types)
	if hint == "" {
		hint = "choose " + strings.Join(types, ", ")
	}
	return nil, fmt.Errorf("unknown sink type %q; %s", kind, hint)
}

// removeKey removes a setting.
func (s *sinkDraft) removeKey(key string) {
	s.settings = slices.DeleteFunc(s.settings, func(t setting) bool { return t.key == key })
}

func (s *sinkDraft) hasAny(keys ...string) bool {
	return slices.ContainsFunc(s.settings, func(t setting) bool { return slices.Contains(keys, t.key) })
}

// add appends a sink. It makes its name unique.
func (c *Config) add(sink *sinkDraft) {
	base := sink.name
	if base == "" {
		base = sink.kind.Type
	}
	sink.name = base
	for n := 2; slices.ContainsFunc(c.sinks, func(other *sinkDraft) bool { return other.name == sink.name }); n++ {
		sink.name = fmt.Sprintf("%s-%d", base, n)
	}
	if !sink.hasAny("topics") {
		topics := setting{key: "topics", parts: []string{"topics"}, values: []string{"*"}, list: true}
		sink.settings = append([]setting{topics}, sink.settings...)
	}
	if sink.kind.Type == "webhook" && !sink.hasAny("secrets", "secret_files") {
		sink.generatedSecret = NewWebhookSecret()
		sink.set("secrets", sink.generatedSecret)
	}
	c.sinks = append(c.sinks, sink)
}

// removeLast removes the sink that add appended last.
func (c *Config) removeLast() { c.sinks = c.sinks[:len(c.sinks)-1] }

// renderYAML returns the text of the configuration.
func (c *Config) renderYAML() ([]byte, error) {
	t, err := template.New("init").Funcs(template.FuncMap{"quote": quoteYAML, "key": yamlKey}).Parse(configTemplate)
	if err != nil {
		return nil, fmt.Errorf("parse template of configuration: %w", err)
	}
	var b strings.Builder
	err = t.Execute(&b, map[string]any{
		"File": filepath.Base(c.File), "Listen": c.Listen, "Redis": c.Redis, "Sinks": c.sinkViews(),
		"Hash": apikey.FormatHash(apikey.HashOf(c.Key)), "Version": c.Version,
	})
	if err != nil {
		return nil, fmt.Errorf("render configuration: %w", err)
	}
	return []byte(b.String()), nil
}

type sinkView struct {
	Name, Type, About string
	Settings          []settingView
}

type settingView struct{ Key, Value, About string }

func (c *Config) sinkViews() []sinkView {
	var list []sinkView
	for _, sink := range c.sinks {
		v := sinkView{Name: sink.name, Type: sink.kind.Type, About: promptsOf(sink.kind.Type).summary}
		for _, b := range buildTree(sink.settings) {
			about := ""
			switch b.key {
			case "topics":
				about = "patterns: * is any run of characters, a leading ! excludes"
			case "secrets":
				about = "the receiver verifies signatures with it"
			}
			v.Settings = append(v.Settings, settingView{b.key, b.yamlText(), about})
		}
		list = append(list, v)
	}
	return list
}

// checkResult contains the problems of the configuration, without line numbers, because there is no file yet.
type checkResult struct {
	problems yamldoc.Problems
	warnings []yamldoc.Problem
}

// checkConfig loads the configuration as serve would. A missing environment variable is a warning, because only serve
// needs it.
func (c *Config) checkConfig(environ []string) (checkResult, error) {
	text, err := c.renderYAML()
	if err != nil {
		return checkResult{}, err
	}
	draft, err := c.writeDraft(text)
	if err != nil {
		return checkResult{}, err
	}
	defer func() { _ = os.Remove(draft) }()
	cfg, err := daemon.LoadConfig(draft, environ, c.Kinds)
	var v checkResult
	var problems yamldoc.Problems
	switch {
	case errors.As(err, &problems):
		for _, p := range problems {
			if name := c.missingVariable(p.Path, environ); name != "" {
				p.Message, p.Hint = "the environment variable "+name+" is not set here", "export it where serve runs"
				v.warnings = append(v.warnings, p)
			} else {
				v.problems = append(v.problems, p)
			}
		}
	case err != nil:
		return checkResult{}, err
	default:
		v.warnings = cfg.Warnings
	}
	withoutFile(v.problems)
	withoutFile(v.warnings)
	return v, nil
}

// missingVariable returns the variable in the setting at path that environ does not contain, or "".
func (c *Config) missingVariable(path string, environ []string) string {
	for _, sink := range c.sinks {
		for _, t := range sink.settings {
			if below := "sinks." + sink.name + "." + t.key; path != below && !strings.HasPrefix(path, below+"[") {
				continue
			}
			for _, m := range regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`).FindAllStringSubmatch(
				strings.Join(t.values, " "), -1) {
				if !slices.ContainsFunc(environ, func(v string) bool { return strings.HasPrefix(v, m[1]+"=") }) {
					return m[1]
				}
			}
		}
	}
	return ""
}

func withoutFile(list []yamldoc.Problem) {
	for i := range list {
		list[i].File = ""
	}
}

// writeDraft writes the configuration to a temporary file in the same directory, so relative paths are resolved
// correctly.
func (c *Config) writeDraft(text []byte) (string, error) {
	f, err := os.CreateTemp(filepath.Dir(c.File), ".hubrelay-init-*.yaml") // mode 0600, because it can contain secrets
	if err != nil {
		var path *os.PathError
		if errors.As(err, &path) {
			err = path.Err // without the name of the draft
		}
		return "", fmt.Errorf("write %s: its directory must exist and be writable: %w", c.File, err)
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		_ = os.Remove(f.Name())
		return "", fmt.Errorf("write %s: %w", c.File, err)
	}
	return f.Name(), nil
}

// Write checks the configuration and writes it, completely or not at all. It returns yamldoc.Problems if the
// configuration is not valid.
func (c *Config) Write(environ []string) (warnings []yamldoc.Problem, err error) {
	checked, err := c.checkConfig(environ)
	if err != nil {
		return nil, err
	}
	if len(checked.problems) > 0 {
		return nil, checked.problems
	}
	return checked.warnings, c.writeFile()
}

// writeFile writes the configuration to its file, completely or not at all.
func (c *Config) writeFile() error {
	text, err := c.renderYAML()
	if err != nil {
		return err
	}
	draft, err := c.writeDraft(text)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(draft) }()
	if c.Force {
		return os.Rename(draft, c.File)
	}
	err = os.Link(draft, c.File) // fails if the file exists by now
	switch {
	case errors.Is(err, os.ErrExist):
		return &existsError{c.File}
	case err != nil: // the file system does not support links
		return os.Rename(draft, c.File)
	}
	return nil
}
