package exec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/plugins/host"
	"github.com/hubrelay/hubrelay/relay"
)

// envPrefix is the prefix of the variables that describe the delivery.
const envPrefix = "HUBRELAY_"

// Config is the configuration of one command.
type Config struct {
	// Command is the program and its arguments, which are always the same. A path such as ./x or bin/x begins at the
	// configuration file, a name without a slash is looked up in the daemon's PATH.
	Command []string `koanf:"command" doc:"Program and arguments: ./x, or x in PATH; no shell."`
	// Env is the environment of the command besides PATH and the description of the delivery.
	Env []string `koanf:"env" secret:"true" doc:"Environment: NAME copies a variable, NAME=value sets one."`
	// Dir is the working directory, a relative one below the configuration file's.
	Dir string `koanf:"dir" doc:"The working directory; empty for the folder of the configuration file."`

	// Metadata adds the members "id" and "time" to each notification.
	Metadata bool `koanf:"metadata" doc:"Add the members id and time to each notification."`

	folder string
}

// withDir returns a copy whose paths are relative to dir.
func (c *Config) withDir(dir string) *Config {
	resolved := *c
	resolved.folder = dir
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

// validate reports every bad value as a [relay.FieldError], joined. It does not look at the program: a daemon starts
// without.
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
			bad("command."+strconv.Itoa(i), "holds a NUL byte, which no program can be given")
		}
	}
	for i, entry := range c.Env {
		name, _, _ := strings.Cut(entry, "=")
		switch {
		case name == "" || strings.ContainsRune(entry, 0):
			bad("env."+strconv.Itoa(i), "has no name: write NAME, or NAME=value")
		case strings.HasPrefix(name, envPrefix):
			bad("env."+strconv.Itoa(i),
				"has a name that begins with "+envPrefix+", like the variables that describe the delivery: choose "+
					"another")
		}
	}
	return errors.Join(errs...)
}

// warnings reports a missing program or directory.
func (c *Config) warnings() []relay.FieldError {
	var list []relay.FieldError
	if _, _, err := c.resolveProgram(); err != nil {
		list = append(list, relay.FieldError{Field: "command", Problem: "cannot be started now: " + err.Error()})
	}
	if err := checkDir(c.workDir()); err != nil {
		list = append(list, relay.FieldError{Field: "dir", Problem: "cannot be used now: " + err.Error()})
	}
	return list
}

// resolveProgram finds the program.
func (c *Config) resolveProgram() (string, []string, error) {
	command := append([]string(nil), c.Command...)
	if strings.ContainsRune(command[0], filepath.Separator) {
		command[0] = relay.ResolvePath(c.folder, command[0]) // not below dir, where the process would look
	}
	return host.Resolve(command)
}

func (c *Config) workDir() string { return relay.ResolvePath(c.folder, c.Dir) }

func checkDir(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return fmt.Errorf("the working directory %s cannot be entered: %w", dir, err)
	case !info.IsDir():
		return fmt.Errorf("the working directory %s is not a directory", dir)
	}
	return nil
}

// commandEnv returns the constant environment of the command, and the values that no error may contain.
func (c *Config) commandEnv() (list, hidden []string) {
	if path, ok := os.LookupEnv("PATH"); ok {
		list = append(list, "PATH="+path)
	}
	for _, entry := range host.ResolveEnv(c.Env, os.LookupEnv) {
		list = append(list, entry)
		if _, value, _ := strings.Cut(entry, "="); len(value) >= shortestHidden {
			hidden = append(hidden, value)
		}
	}
	return list, hidden
}
