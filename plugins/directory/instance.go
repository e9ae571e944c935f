package directory

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hubrelay/hubrelay/internal/strictjson"
)

const (
	fileInstance = "instance.json"
	dirVolumes   = "volumes"
	// maxSmallFile is the maximum size of instance.json and of the agents' files, in bytes.
	maxSmallFile = 1 << 20
)

// instanceFile is the content of instance.json.
type instanceFile struct {
	Command []string          `json:"command"`
	Env     map[string]string `json:"env"`
}

// readInstance reads instance.json of a directory. An instance without the file or without a command runs nothing. It
// rejects a file or directory that another user may change.
func readInstance(home string) (instanceFile, error) {
	var c instanceFile
	path := filepath.Join(home, fileInstance)
	data, err := readSmall(path, checkOwner)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		err = checkOwnerAt(home)
	}
	if err != nil {
		return c, err
	}
	if err := strictjson.Decode(data, &c); err != nil {
		return c, fmt.Errorf(`%s must be {"command": [PROGRAM, …], "env": {NAME: VALUE}}: %w`, path, err)
	}
	if len(c.Command) > 0 && c.Command[0] == "" {
		return c, fmt.Errorf("%s: the first word of command is empty", path)
	}
	return c, nil
}

// readSmall reads a small file safely from a directory in which the instance may create any kind of file. The checks
// apply to the open file.
func readSmall(path string, checks ...func(string, fs.FileInfo) error) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	for _, check := range checks {
		if err == nil {
			err = check(path, info)
		}
	}
	var data []byte
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is not a regular file", path)
	case info.Size() > maxSmallFile:
		err = fmt.Errorf("%s is longer than %d bytes", path, maxSmallFile)
	default:
		data, err = io.ReadAll(io.LimitReader(f, maxSmallFile))
	}
	return data, cmp.Or(err, f.Close())
}

// commandEnv returns the complete environment of an instance's command: the inherited variables, those of
// instance.json, and HUBRELAY_INSTANCE.
func (i instanceFile) commandEnv(instance string) []string {
	env := inheritedEnv()
	for name, value := range i.Env {
		env = append(env, name+"="+value)
	}
	slices.Sort(env[len(env)-len(i.Env):])
	return append(env, "HUBRELAY_INSTANCE="+instance)
}

// inheritedEnv returns the variables of this process that every program needs. They contain no secrets.
func inheritedEnv() []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	if _, ok := os.LookupEnv("PATH"); !ok {
		env = append(env, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	}
	if _, ok := os.LookupEnv("HOME"); !ok {
		if u, err := user.Current(); err == nil {
			env = append(env, "HOME="+u.HomeDir)
		}
	}
	return env
}
