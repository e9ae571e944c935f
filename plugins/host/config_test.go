package host

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

func TestConfig_Validate(t *testing.T) {
	sum := strings.Repeat("0a", 32)
	for name, c := range map[string]struct {
		change func(*Config)
		field  string
		want   string
	}{
		"good":          {func(c *Config) { c.SHA256, c.Files = sum, map[string]string{"x.py": sum} }, "", ""},
		"builtin":       {func(c *Config) { c.Command = []string{"builtin:log"} }, "", ""},
		"no command":    {func(c *Config) { c.Command = nil }, "command", "is missing"},
		"empty command": {func(c *Config) { c.Command = []string{""} }, "command", "is missing"},
		"unknown builtin": {
			func(c *Config) { c.Command = []string{"builtin:lgo"} }, "command",
			"did you mean builtin:log?",
		},
		"other builtin": {func(c *Config) { c.Command = []string{"builtin:something"} }, "command", "there are log"},
		"sha256":        {func(c *Config) { c.SHA256 = "abc" }, "sha256", "64 hexadecimal digits"},
		"files": {
			func(c *Config) { c.Files = map[string]string{"x.py": sum + "00"} }, "files.x.py",
			"64 hexadecimal digits",
		},
		"env":     {func(c *Config) { c.Env = []string{"HOME", "=x"} }, "env.1", "NAME=value"},
		"startup": {func(c *Config) { c.StartupTimeout = 0 }, "startup_timeout", "100ms to 10m"},
		"hang":    {func(c *Config) { c.HangTimeout = 2 * time.Hour }, "hang_timeout", "to 1h"},
		"memory":  {func(c *Config) { c.MemoryLimit = 1000 }, "memory_limit", "at least 16MiB"},
		"crashes": {func(c *Config) { c.MaxCrashes = 0 }, "max_crashes", "1 to 1000"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := NewConfig("log")
			cfg.Command = []string{"./watcher"}
			c.change(cfg)
			err := cfg.Validate()
			if c.field == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var wrong *relay.FieldError
			if !errors.As(err, &wrong) || wrong.Field != c.field || !strings.Contains(wrong.Problem, c.want) {
				t.Errorf("got %v, want %s: %s", err, c.field, c.want)
			}
		})
	}
}

func TestConfig_ValidateReportsAllProblems(t *testing.T) {
	c := NewConfig()
	c.SHA256, c.MaxCrashes = "abc", 0
	err := c.Validate()
	for _, field := range []string{"command", "sha256", "max_crashes"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not in %v", field, err)
		}
	}
}

// Paths of the configuration begin at its file, wherever the daemon was started.
func TestConfig_ResolvesPaths(t *testing.T) {
	folder := t.TempDir()
	c := NewConfig()
	c = c.WithDir(folder)
	for from, want := range map[string]string{
		"./watcher": filepath.Join(folder, "watcher"), "../watcher": filepath.Join(filepath.Dir(folder), "watcher"),
		"bin/watcher": filepath.Join(folder, "bin/watcher"), "/bin/watcher": "/bin/watcher", "watcher": "watcher",
		"builtin:log": "builtin:log",
	} {
		c.Command, c.Args = []string{from, "./a"}, []string{"b"}
		if got := c.fullCommand(); !reflect.DeepEqual(got, []string{want, "./a", "b"}) {
			t.Errorf("%s became %v", from, got)
		}
	}
	c.Command = []string{"./watcher"}
	w := c.listWarnings()
	if len(w) != 1 || w[0].Field != "command" || !strings.Contains(w[0].Problem, "does not exist") {
		t.Errorf("warnings %+v", w)
	}
	if err := os.WriteFile(filepath.Join(folder, "watcher"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if w := c.listWarnings(); w != nil {
		t.Errorf("warnings %+v", w)
	}
	c.SHA256 = strings.Repeat("0", 64)
	if w := c.listWarnings(); len(w) != 1 || !strings.Contains(w[0].Problem, "sha256 pins 000") {
		t.Errorf("another program than the pinned one: warnings %+v", w)
	}
	c.SHA256, c.Files = "", map[string]string{"watcher": strings.Repeat("0", 64)}
	if w := c.listWarnings(); len(w) != 1 || !strings.Contains(w[0].Problem, "files pins 000") {
		t.Errorf("another file than the pinned one: warnings %+v", w)
	}
	c = c.WithDir(".")
	if got := c.fullCommand()[0]; !filepath.IsAbs(got) {
		t.Errorf("%s is relative", got)
	}
	if c.Command[0] != "./watcher" {
		t.Error("the configuration was changed")
	}
	if Builtin != "builtin:" {
		t.Error("the name is fixed")
	}
}

func TestResolveEnv(t *testing.T) {
	lookup := func(name string) (string, bool) {
		value, ok := map[string]string{"HOME": "/root", "SECRET": "x"}[name]
		return value, ok
	}
	got := ResolveEnv([]string{"HOME", "ABSENT", "A=b=c", "EMPTY="}, lookup)
	if want := []string{"HOME=/root", "A=b=c", "EMPTY="}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// The daemon enables a disabled sink when the fingerprint of its settings changes.
func TestConfig_FingerprintIncludesConfig(t *testing.T) {
	a, b := NewConfig(), NewConfig()
	a.Config, b.Config = map[string]any{"x": 1}, map[string]any{"x": 2}
	textA, errA := json.Marshal(a)
	textB, errB := json.Marshal(b)
	if errA != nil || errB != nil || string(textA) == string(textB) {
		t.Errorf("%s, %v; %s, %v", textA, errA, textB, errB)
	}
}
