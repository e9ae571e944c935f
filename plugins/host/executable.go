package host

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/hubrelay/hubrelay/plugins/internal/wire"
)

// Builtin is the prefix of the name of a plugin that is part of the daemon's binary.
const Builtin = "builtin:"

// BuiltinCommand is the argument with which the daemon's binary runs a plugin. The name of the plugin follows.
const BuiltinCommand = "builtin-plugin"

// Resolve returns the path of the program of a command and its arguments, or why it cannot be started at present.
func Resolve(command []string) (path string, args []string, err error) {
	program, args := command[0], command[1:]
	if name, builtin := strings.CutPrefix(program, Builtin); builtin {
		self, err := os.Executable()
		if err != nil {
			return "", nil, fmt.Errorf("find the binary of hubrelay: %w", err)
		}
		return self, append([]string{BuiltinCommand, name}, args...), nil
	}
	if !strings.ContainsRune(program, filepath.Separator) {
		path, err := exec.LookPath(program)
		if err != nil {
			return "", nil, fmt.Errorf(
				"the command %q is not in PATH: install it, or write its path, such as ./%s", program, program,
			)
		}
		return path, args, nil
	}
	info, err := os.Stat(program)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil, fmt.Errorf("the command %s does not exist: build it, or correct its path", program)
	case err != nil:
		return "", nil, fmt.Errorf("the command %s cannot be checked: %w", program, err)
	case info.IsDir():
		return "", nil, fmt.Errorf("the command %s is a directory: name a program in it", program)
	case info.Mode()&0o111 == 0:
		return "", nil, fmt.Errorf("the command %s is not executable: chmod +x it", program)
	}
	return program, args, nil
}

// openProgram compares the program and the files with their pins before a start. It returns the content to run,
// or nil if the program must be run by name: without a pin, and for a part of the running binary.
func (o *Options) openProgram(program string) (*os.File, error) {
	isBuiltin := strings.HasPrefix(o.Command[0], Builtin)
	if o.SHA256 == "" || isBuiltin {
		return nil, CheckPins(program, o.SHA256, o.Files)
	}
	if err := CheckPins("", "", o.Files); err != nil {
		return nil, err
	}
	return openPinned(program, o.SHA256)
}

// runContent makes a command run an open file. The plugin sees its own name as its first argument.
func runContent(cmd *exec.Cmd, content *os.File) {
	const firstExtraFile = 3 // after the standard streams
	cmd.Path, cmd.ExtraFiles = fmt.Sprintf("/proc/self/fd/%d", firstExtraFile), []*os.File{content}
}

// CheckPins compares the program and the files with their pins.
func CheckPins(program, sum string, files map[string]string) error {
	if sum != "" {
		if err := checkPin(program, sum, "sha256"); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := checkPin(name, files[name], "files"); err != nil {
			return err
		}
	}
	return nil
}

func checkPin(name, want, key string) error {
	f, err := openRegular(name, key)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return comparePin(name, f, want, key)
}

// openRegular opens a file to compare it with its pin. Another kind of file, such as a named pipe, could block for ever.
func openRegular(name, key string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("read %s to compare it with %s: %w", name, key, err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a regular file")
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("read %s to compare it with %s: %w", name, key, err)
	}
	return f, nil
}

// comparePin compares the content of a file with its pin.
func comparePin(name string, content io.Reader, want, key string) error {
	pinned, err := hex.DecodeString(want)
	if err != nil || len(pinned) != sha256.Size {
		return fmt.Errorf("%s of %s is not 64 hexadecimal digits", key, name)
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, content); err != nil {
		return fmt.Errorf("read %s to compare it with %s: %w", name, key, err)
	}
	if got := hash.Sum(nil); subtle.ConstantTimeCompare(got, pinned) != 1 {
		return fmt.Errorf("%s has the SHA-256 %x, but %s pins %s: if the change is wanted, pin the new one", name, got,
			key, want)
	}
	return nil
}

// HandshakeEnv returns the environment variables that tell a plugin its kind, without TLS. Its socket must be in
// folder.
func HandshakeEnv(kind, folder string) []string {
	return []string{
		wire.CookieName + "=" + kind, "PLUGIN_PROTOCOL_VERSIONS=" + strconv.Itoa(wire.Version),
		"PLUGIN_UNIX_SOCKET_DIR=" + folder,
	}
}
