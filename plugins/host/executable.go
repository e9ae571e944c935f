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

	"github.com/hubrelay/hubrelay/plugins/internal/wire"
)

// Builtin begins the name of a plugin that is part of the daemon's own binary.
const Builtin = "builtin:"

// BuiltinCommand is the argument that makes the daemon's own binary run a plugin; the plugin's name follows.
const BuiltinCommand = "builtin-plugin"

// Resolve returns the path of a command's program and its arguments, or why it cannot be started now.
func Resolve(command []string) (path string, args []string, err error) {
	program, args := command[0], command[1:]
	if name, builtin := strings.CutPrefix(program, Builtin); builtin {
		self, err := os.Executable()
		if err != nil {
			return "", nil, fmt.Errorf("find the daemon's own binary: %w", err)
		}
		return self, append([]string{BuiltinCommand, name}, args...), nil
	}
	if !strings.ContainsRune(program, filepath.Separator) {
		path, err := exec.LookPath(program)
		if err != nil {
			return "", nil, fmt.Errorf(
				"the command %q is not in the daemon's PATH: install it, or write its path (./%s is relative to the "+
					"configuration)", program, program,
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
		return "", nil, fmt.Errorf("the command %s is a directory: name the program in it", program)
	case info.Mode()&0o111 == 0:
		return "", nil, fmt.Errorf("the command %s is not executable: chmod +x it", program)
	}
	return program, args, nil
}

// CheckPins compares the program and the files with the operator's pins. It is called before every start.
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

func checkPin(name, want, key string) (err error) {
	pinned, err := hex.DecodeString(want)
	if err != nil || len(pinned) != sha256.Size {
		return fmt.Errorf("%s of %s is not 64 hexadecimal digits", key, name)
	}
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("read %s to compare it with %s: %w", name, key, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return fmt.Errorf("read %s to compare it with %s: %w", name, key, err)
	}
	if got := hash.Sum(nil); subtle.ConstantTimeCompare(got, pinned) != 1 {
		return fmt.Errorf("%s has the SHA-256 %x, but %s pins %s: if the change is meant, pin the new one", name, got,
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
