package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const maxSecretFile = 1 << 20

// readBounded reads a file of at most limit bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	err = errors.Join(err, f.Close())
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("it is larger than %s", Size(limit))
	}
	return data, err
}

// readSecret reads a secret from a file, without the newline at its end.
func readSecret(path string) (string, error) {
	data, err := readBounded(path, maxSecretFile)
	if err != nil {
		return "", fmt.Errorf("%s cannot be read: %s", path, reason(err))
	}
	s := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	if s == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return s, nil
}

// Digest returns the SHA-256 of the key. It reads KeyFile anew each time, so that a changed file takes effect.
func (k Key) Digest() ([sha256.Size]byte, error) {
	var digest [sha256.Size]byte
	text := k.Key
	switch {
	case k.KeySHA256 != "":
		b, err := hex.DecodeString(k.KeySHA256)
		if err != nil || len(b) != sha256.Size {
			return digest, fmt.Errorf("key_sha256 of key %q is not 64 hexadecimal digits", k.Name)
		}
		copy(digest[:], b)
		return digest, nil
	case k.KeyFile != "":
		var err error
		if text, err = readSecret(k.KeyFile); err != nil {
			return digest, fmt.Errorf("key %q: %w", k.Name, err)
		}
	}
	if err := checkKey(text); err != nil {
		return digest, fmt.Errorf("key %q %w", k.Name, err)
	}
	return sha256.Sum256([]byte(text)), nil
}

// MinKeyLength is the least number of characters of an API key.
const MinKeyLength = 16

// checkKey says what makes text unfit to be sent as a bearer key.
func checkKey(text string) error {
	if len(text) < MinKeyLength {
		return fmt.Errorf("has %d characters, %d are the least", len(text), MinKeyLength)
	}
	for _, c := range []byte(text) {
		if c <= ' ' || c > '~' {
			return errors.New("holds white space or other characters that a header cannot carry")
		}
	}
	return nil
}

// filePath makes a file name absolute to where it was written, and checks that the file can be read.
func (c *converter) filePath(f *field, v *value, path string) (any, bool) {
	name := v.text
	if !filepath.IsAbs(name) && v.at.variable == "" {
		name = filepath.Join(c.folder, name)
	}
	info, err := os.Stat(name)
	switch {
	case err != nil:
		hint := ""
		if !filepath.IsAbs(v.text) && v.at.variable == "" {
			hint = "file names are relative to the folder of the configuration file"
		}
		c.badAt(v.at, path, fmt.Sprintf("%s cannot be read: %s", name, reason(err)), hint)
		return nil, false
	case info.IsDir():
		c.badAt(v.at, path, name+" is a folder, not a file", "")
		return nil, false
	}
	if _, err := readSecret(name); err != nil {
		c.badAt(v.at, path, err.Error(), "")
		return nil, false
	}
	if info.Mode().IsRegular() && info.Mode().Perm()&0o004 != 0 && !isCertificate(f.name) {
		c.warnings = append(c.warnings, c.problem(v.at, path, name+" can be read by every user of this machine", "chmod 600 it"))
	}
	if abs, err := filepath.Abs(name); err == nil {
		name = abs
	}
	return name, true
}

func isCertificate(key string) bool {
	return strings.Contains(key, "cert") || strings.HasPrefix(key, "ca_")
}

// expand replaces ${NAME} in a secret from the environment; $${ stands for ${ itself.
func (c *converter) expand(v *value, path string) (string, bool) {
	ok := true
	text := regexp.MustCompile(`\$?\$\{[^}]*\}?`).ReplaceAllStringFunc(v.text, func(m string) string {
		if rest, escaped := strings.CutPrefix(m, "$$"); escaped {
			return "$" + rest
		}
		name := strings.TrimSuffix(m[2:], "}")
		if !strings.HasSuffix(m, "}") || !regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`).MatchString(name) {
			c.badAt(v.at, path, "holds a ${ that is no ${NAME}", "write $${ where ${ itself is meant")
			ok = false
			return ""
		}
		value, set := c.environ[name]
		if !set || value == "" {
			c.badAt(v.at, path, fmt.Sprintf("the environment variable %s is not set", name), "export it before the start, or name a file instead")
			ok = false
		}
		return value
	})
	return text, ok
}
