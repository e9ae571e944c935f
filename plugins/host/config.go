package host

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/suggest"
	"github.com/hubrelay/hubrelay/relay"
)

var _ relay.Config = (*Config)(nil)

// Config is the configuration of one plugin, which is a sink or a driver.
type Config struct {
	// Command is the program and its first arguments. A path such as ./x or bin/x is relative to the configuration
	// file. A name without a slash is searched in PATH. builtin:NAME is a plugin that is part of the daemon.
	Command []string `koanf:"command" doc:"Program and arguments: ./x, x in PATH, or builtin:NAME."`
	// Args follow the command.
	Args []string `koanf:"args" doc:"More arguments."`
	// Env is the complete environment of the plugin.
	Env []string `koanf:"env" secret:"true" doc:"Complete environment: NAME copies a variable, NAME=value sets it."`
	// SHA256 pins the program, and Files pins other files. Both are checked before every start.
	SHA256 string            `koanf:"sha256" doc:"SHA-256 of the program, checked before every start."`
	Files  map[string]string `koanf:"files" doc:"SHA-256 of other files by name, such as scripts."`
	// Config is the configuration of the plugin itself. It may contain secrets.
	Config map[string]any `koanf:"config" secret:"true" doc:"Configuration of the plugin itself; never shown."`
	// TLS must be false for plugins that do not support it.
	TLS            bool          `koanf:"tls" doc:"Encrypt the connection; false if the plugin does not support it."`
	StartupTimeout time.Duration `koanf:"startup_timeout" doc:"Maximum time of a start, 100ms to 10m."`
	HangTimeout    time.Duration `koanf:"hang_timeout" doc:"Time without a response until a kill, 100ms to 1h."`
	MemoryLimit    relay.Size    `koanf:"memory_limit" doc:"Maximum memory, at least 16MiB; Linux only."`
	MaxCrashes     int           `koanf:"max_crashes" doc:"Crashes that disable a sink, 1 to 1000."`

	folder   string
	builtins []string
	kind     string
}

// NewConfig returns the defaults for a sink. builtins names the plugins that the daemon contains.
func NewConfig(builtins ...string) *Config {
	return &Config{
		TLS: true, StartupTimeout: DefaultStartupTimeout, HangTimeout: DefaultHangTimeout,
		MaxCrashes: DefaultMaxCrashes, builtins: builtins, kind: KindSink,
	}
}

// WithDir returns a copy whose paths are relative to dir.
func (c *Config) WithDir(dir string) *Config {
	resolved := *c
	resolved.folder = dir
	return &resolved
}

// Check implements [relay.Config]. A missing program is a warning, because the daemon starts without it. With
// env.Probe it starts the plugin, lets it check its configuration, and stops it.
func (c *Config) Check(ctx context.Context, env relay.CheckEnv) relay.Report {
	c = c.WithDir(env.Dir)
	if err := c.Validate(); err != nil {
		return relay.NewReport(err)
	}
	warnings := c.listWarnings()
	switch {
	case !env.Probe:
		return relay.NewReport(nil, warnings...)
	case len(warnings) > 0: // known from the check without Probe
		return relay.Report{}
	}
	warnings, err := c.probePlugin(ctx, env.Name)
	return relay.NewReport(err, warnings...)
}

// IsSet reports whether a plugin is configured. Numbers alone do not count.
func (c *Config) IsSet() bool {
	return len(c.Command)+len(c.Args)+len(c.Env)+len(c.SHA256)+len(c.Files)+len(c.Config) > 0
}

// Validate joins a [relay.FieldError] for each invalid value. It does not check the program, because the daemon also
// starts without it.
func (c *Config) Validate() error {
	errs := []error{c.checkCommand()}
	bad := func(field, problem string) { errs = append(errs, &relay.FieldError{Field: field, Problem: problem}) }
	for i, entry := range c.Env {
		if name, _, _ := strings.Cut(entry, "="); name == "" || strings.ContainsRune(entry, 0) {
			bad("env."+strconv.Itoa(i), "has no name: write NAME or NAME=value")
		}
	}
	if err := checkSHA256(c.SHA256); err != nil && c.SHA256 != "" {
		bad("sha256", err.Error())
	}
	for _, name := range slices.Sorted(maps.Keys(c.Files)) {
		if err := checkSHA256(c.Files[name]); err != nil {
			bad("files."+name, err.Error())
		}
	}
	for _, d := range []struct {
		field    string
		is, most time.Duration
	}{{"startup_timeout", c.StartupTimeout, 10 * time.Minute}, {"hang_timeout", c.HangTimeout, time.Hour}} {
		if d.is < 100*time.Millisecond || d.is > d.most {
			bad(d.field, fmt.Sprintf("is %s: choose 100ms to %s", d.is, d.most))
		}
	}
	if c.MemoryLimit != 0 && c.MemoryLimit < minMemoryLimit {
		bad("memory_limit", "is too small: choose at least 16MiB, or remove it")
	}
	if c.MaxCrashes < 1 || c.MaxCrashes > 1000 {
		bad("max_crashes", fmt.Sprintf("is %d: choose 1 to 1000", c.MaxCrashes))
	}
	return errors.Join(errs...)
}

const minMemoryLimit = 16 << 20

func (c *Config) checkCommand() error {
	if len(c.Command) == 0 || c.Command[0] == "" {
		return &relay.FieldError{
			Field: "command", Problem: "is missing: name the program of the plugin, such as [./watcher]",
		}
	}
	name, builtin := strings.CutPrefix(c.Command[0], Builtin)
	if !builtin || slices.Contains(c.builtins, name) {
		return nil
	}
	hint := "there are " + strings.Join(c.builtins, ", ")
	if near := suggest.ClosestName(name, c.builtins); near != "" {
		hint = "did you mean " + Builtin + near + "?"
	}
	return &relay.FieldError{
		Field: "command", Problem: fmt.Sprintf("names %q, which is not part of hubrelay: %s",
			relay.Truncate(c.Command[0], 60), hint),
	}
}

// listWarnings reports a program that does not exist yet, or that does not match its pin.
func (c *Config) listWarnings() []relay.FieldError {
	program, _, err := Resolve(c.fullCommand())
	if err == nil {
		err = CheckPins(program, c.SHA256, c.pinnedFiles())
	}
	if err != nil {
		return []relay.FieldError{{Field: "command", Problem: "cannot be started: " + err.Error()}}
	}
	return nil
}

// probePlugin starts the plugin, lets it check its configuration, and stops it. A warning says why it did not check.
func (c *Config) probePlugin(ctx context.Context, name string) ([]relay.FieldError, error) {
	o, err := c.Options(name)
	if err != nil {
		return nil, err
	}
	problems, err := Validate(ctx, c.kind, o)
	switch {
	case errors.Is(err, ErrUnsupported) && len(c.Config) == 0:
		return nil, nil
	case errors.Is(err, ErrUnsupported):
		return []relay.FieldError{
			{Field: "config", Problem: "is not checked before the plugin runs, because the plugin does not " +
				"implement it " +
				"(Validate of the protocol)"},
		}, nil
	case err != nil:
		return []relay.FieldError{
			{Field: "command", Problem: "cannot check its configuration: " + err.Error()},
		}, nil
	}
	var errs []error
	for _, p := range problems {
		field := "config"
		if p.Field != "" {
			field += "." + p.Field
		}
		errs = append(errs, &relay.FieldError{Field: field, Problem: p.Problem})
	}
	return nil, errors.Join(errs...)
}

func checkSHA256(text string) error {
	if sum, err := hex.DecodeString(text); err != nil || len(sum) != 32 {
		return errors.New("is not 64 hexadecimal digits: sha256sum prints them")
	}
	return nil
}

// Options returns the options to start the plugin. The caller adds the options that the operator cannot set.
func (c *Config) Options(name string) (Options, error) {
	var config []byte
	if len(c.Config) > 0 {
		var err error
		if config, err = json.Marshal(c.Config); err != nil {
			return Options{}, fmt.Errorf("config: %w", err)
		}
	}
	return Options{
		Name: name, Command: c.fullCommand(), Dir: relay.ResolvePath(c.folder, "."),
		Env:    ResolveEnv(c.Env, os.LookupEnv),
		SHA256: c.SHA256, Files: c.pinnedFiles(), Config: config, PlainSocket: !c.TLS,
		StartupTimeout: c.StartupTimeout, HangTimeout: c.HangTimeout,
		MemoryLimit: int64(c.MemoryLimit), MaxCrashes: c.MaxCrashes,
	}, nil
}

// ResolveEnv resolves an allow-list: NAME is taken from the daemon's environment, if it is there.
func ResolveEnv(allowed []string, lookup func(string) (string, bool)) []string {
	var list []string
	for _, entry := range allowed {
		if !strings.Contains(entry, "=") {
			value, ok := lookup(entry)
			if !ok {
				continue
			}
			entry += "=" + value
		}
		list = append(list, entry)
	}
	return list
}

// fullCommand returns the complete command. A relative path of the program is joined with the directory of the
// configuration.
func (c *Config) fullCommand() []string {
	list := slices.Concat(c.Command, c.Args)
	// The checked and pinned file must be the file that the process finds from its own directory.
	if p := list[0]; strings.ContainsRune(p, filepath.Separator) && !strings.HasPrefix(p, Builtin) {
		list[0] = relay.ResolvePath(c.folder, p)
	}
	return list
}

// pinnedFiles returns the pins by path.
func (c *Config) pinnedFiles() map[string]string {
	files := make(map[string]string, len(c.Files))
	for name, sum := range c.Files {
		files[relay.ResolvePath(c.folder, name)] = sum
	}
	return files
}
