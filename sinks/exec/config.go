package exec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/internal/redact"
	"github.com/hubrelay/hubrelay/plugins/host"
	"github.com/hubrelay/hubrelay/relay"
)

// envPrefix is the prefix of the variables that describe the delivery.
const envPrefix = "HUBRELAY_"

// Config is the configuration of one command.
type Config struct {
	// Command is the program and its fixed arguments. A path such as ./x or bin/x is relative to the directory of the
	// configuration file. A name without a slash is looked up in the PATH of the daemon.
	Command []string `koanf:"command" doc:"Program and arguments: ./x, or x in PATH; no shell."`
	// Env is the environment of the command in addition to PATH and the variables that describe the delivery.
	Env []string `koanf:"env" secret:"true" doc:"Environment: NAME copies a variable, NAME=value sets one."`
	// Dir is the working directory, relative to the directory of the configuration file.
	Dir string `koanf:"dir" doc:"Working directory; empty for the directory of the configuration file."`

	// Metadata adds the members "id" and "time" to each notification.
	Metadata bool `koanf:"metadata" doc:"Add the members id and time to each event."`

	baseDir string
}

// withDir returns a copy with paths relative to dir.
func (c *Config) withDir(dir string) *Config {
	resolved := *c
	resolved.baseDir = dir
	return &resolved
}

// Check implements [relay.Config].
func (c *Config) Check(_ context.Context, env relay.CheckEnv) relay.Report {
	c = c.withDir(env.Dir)
	if err := c.validate(); err != nil {
		return relay.NewReport(err)
	}
	return relay.NewReport(nil, c.warnings()...)
}

// validate joins a [relay.FieldError] for each invalid value. It does not check the program, because the daemon also
// starts without it.
func (c *Config) validate() error {
	var errs []error
	bad := func(field, problem string) { errs = append(errs, &relay.FieldError{Field: field, Problem: problem}) }
	switch {
	case len(c.Command) == 0 || c.Command[0] == "":
		bad("command", "is missing: name the program, such as [./notify.sh]")
	case strings.HasPrefix(c.Command[0], host.Builtin):
		bad("command", "names a plugin: use it in a sink of type plugin, or name a program")
	}
	for i, arg := range c.Command {
		if strings.ContainsRune(arg, 0) {
			bad("command."+strconv.Itoa(i), "contains a NUL byte, which an argument cannot contain")
		}
	}
	for i, entry := range c.Env {
		name, _, _ := strings.Cut(entry, "=")
		switch {
		case name == "" || strings.ContainsRune(entry, 0):
			bad("env."+strconv.Itoa(i), "has no name: write NAME or NAME=value")
		case strings.HasPrefix(name, envPrefix):
			bad("env."+strconv.Itoa(i),
				"has a name that starts with "+envPrefix+", like the variables that describe the delivery: choose "+
					"another")
		}
	}
	return errors.Join(errs...)
}

// warnings reports a missing program or directory.
func (c *Config) warnings() []relay.FieldError {
	var list []relay.FieldError
	if _, _, err := c.resolveProgram(); err != nil {
		list = append(list, relay.FieldError{Field: "command", Problem: "cannot be started at present: " + err.Error()})
	}
	if err := checkDir(c.workDir()); err != nil {
		list = append(list, relay.FieldError{Field: "dir", Problem: "cannot be used at present: " + err.Error()})
	}
	return list
}

// resolveProgram finds the program.
func (c *Config) resolveProgram() (string, []string, error) {
	command := append([]string(nil), c.Command...)
	if strings.ContainsRune(command[0], filepath.Separator) {
		command[0] = relay.ResolvePath(c.baseDir, command[0]) // exec would resolve it relative to Dir
	}
	return host.Resolve(command)
}

func (c *Config) workDir() string { return relay.ResolvePath(c.baseDir, c.Dir) }

func checkDir(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return fmt.Errorf("open the working directory %s: %w", dir, err)
	case !info.IsDir():
		return fmt.Errorf("the working directory %s is not a directory", dir)
	}
	return nil
}

// commandEnv returns the constant part of the environment, and the values of env, which errors must not contain.
func (c *Config) commandEnv() (list []string, secrets redact.Secrets) {
	if path, ok := os.LookupEnv("PATH"); ok {
		list = append(list, "PATH="+path)
	}
	for _, entry := range host.ResolveEnv(c.Env, os.LookupEnv) {
		list = append(list, entry)
		_, value, _ := strings.Cut(entry, "=")
		secrets = secrets.With(value)
	}
	return list, secrets
}
