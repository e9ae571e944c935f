package directory

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// mountBelow returns a mount point below a directory, or an empty string.
func mountBelow(dir string) (string, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil // there is no /proc
	}
	if err != nil {
		return "", err
	}
	for line := range bytes.Lines(mounts) {
		if fields := bytes.Fields(line); len(fields) > 4 {
			if path := mountPath(string(fields[4])); strings.HasPrefix(path, dir+"/") {
				return path, nil
			}
		}
	}
	return "", nil
}

// mountPath decodes a path from mountinfo. The kernel encodes white space and backslashes as three octal digits.
func mountPath(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				_ = b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		_ = b.WriteByte(s[i])
	}
	return b.String()
}
