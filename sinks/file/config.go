package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	minMaxSize = 64 << 10
	day        = 24 * time.Hour
)

// Config is the configuration of one file.
type Config struct {
	// Path is the file to append lines to. Its directory must exist.
	Path string `koanf:"path" doc:"File for the lines, relative to the configuration file."`
	// MaxSize is the maximum size of the file. A larger one is renamed, and a new one is created. 0 is no limit.
	MaxSize relay.Size `koanf:"max_size" doc:"Maximum size of the file, at least 64KiB; 0 for no limit."`
	// MaxAge and MaxBackups limit the age and the number of renamed files. 0 is no limit.
	MaxAge     time.Duration `koanf:"max_age" doc:"Time to keep renamed files, in whole days; 0 for no limit."`
	MaxBackups int           `koanf:"max_backups" doc:"Maximum number of renamed files; 0 for no limit."`
	// Compress compresses renamed files with gzip.
	Compress bool `koanf:"compress" doc:"Compress renamed files with gzip."`
	// Fsync waits until each line is on the disk.
	Fsync bool `koanf:"fsync" doc:"Wait until each line is on the disk."`
	// Metadata adds the members "id" and "time" to each notification.
	Metadata bool `koanf:"metadata" doc:"Add the members id and time to each event."`

	baseDir string
}

func defaultConfig() *Config { return &Config{MaxSize: 100 << 20, MaxBackups: 10, Metadata: true} }

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
	return relay.NewReport(nil, c.listWarnings()...)
}

// validate joins a [relay.FieldError] for each invalid value. It does not check the file.
func (c *Config) validate() error {
	var errs []error
	bad := func(field, problem string) { errs = append(errs, &relay.FieldError{Field: field, Problem: problem}) }
	switch {
	case c.Path == "":
		bad("path", "is missing: name the file to append lines to")
	case os.IsPathSeparator(c.Path[len(c.Path)-1]):
		bad("path", "names a directory: add a file name")
	}
	if c.MaxSize != 0 && c.MaxSize < minMaxSize {
		bad("max_size", "is too small: choose 64KiB or more, or 0 for no limit")
	}
	if c.MaxAge < 0 || c.MaxAge%day != 0 || c.MaxAge > 36500*day {
		bad("max_age", fmt.Sprintf("is %s: choose whole days, such as 24h or 168h, or 0 for no limit", c.MaxAge))
	}
	if c.MaxBackups < 0 {
		bad("max_backups", fmt.Sprintf("is %d: choose the number of files to keep, or 0 for all", c.MaxBackups))
	}
	return errors.Join(errs...)
}

// listWarnings reports a file that cannot be written at present. The daemon starts anyway, and attempts fail.
func (c *Config) listWarnings() []relay.FieldError {
	var list []relay.FieldError
	if err := c.tryOpen(); err != nil {
		list = append(list, relay.FieldError{Field: "path", Problem: "cannot be written at present: " + err.Error()})
	}
	if c.MaxSize == 0 && (c.MaxAge != 0 || c.Compress) {
		list = append(list, relay.FieldError{
			Field: "max_size", Problem: "is 0, so no file is ever renamed, and max_age, max_backups and compress do " +
				"nothing",
		})
	}
	return list
}

// tryOpen opens the file as Deliver would, but does not create it.
func (c *Config) tryOpen() error {
	path := c.absPath()
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		dir, err := os.Stat(filepath.Dir(path))
		switch {
		case err != nil:
			return describeError(path, err)
		case !dir.IsDir():
			return fmt.Errorf("%s is not a directory", filepath.Dir(path))
		}
		return nil
	}
	if err == nil {
		err = checkRegular(path, info)
	}
	if err != nil {
		return describeError(path, err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return describeError(path, err)
	}
	return f.Close()
}

// rotationSettings returns the settings that do not depend on the path.
func (c *Config) rotationSettings() settings {
	return settings{int64(c.MaxSize), int(c.MaxAge / day), c.MaxBackups, c.Compress, c.Fsync}
}

// absPath returns the resolved path.
func (c *Config) absPath() string { return filepath.Clean(relay.ResolvePath(c.baseDir, c.Path)) }
