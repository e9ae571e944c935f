package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hubrelay/hubrelay/internal/filewatch"
	"github.com/hubrelay/hubrelay/internal/yamldoc"
)

// readSecret reads a secret from a file, without its final newline.
func readSecret(path string) (string, error) {
	data, err := filewatch.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%s %w", path, err)
	}
	s := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	if s == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return s, nil
}

// credential is a secret that a client presents: an API key or an admin token. Exactly one of text, file and hash
// is set.
type credential struct{ kind, name, text, file, hash string }

func (k Key) credential() credential {
	return credential{"key", k.Name, k.Key, k.KeyFile, k.KeySHA256}
}

func (t AdminToken) credential() credential {
	return credential{"token", t.Name, t.Token, t.TokenFile, t.TokenSHA256}
}

// SHA256 returns the SHA-256 of the key. It reads KeyFile on each call, so a changed file takes effect.
func (k Key) SHA256() ([sha256.Size]byte, error) { return k.credential().digest() }

// Digest returns the SHA-256 of the token. It reads TokenFile on each call, so a changed file takes effect.
func (t AdminToken) Digest() ([sha256.Size]byte, error) { return t.credential().digest() }

func (c credential) digest() ([sha256.Size]byte, error) {
	var digest [sha256.Size]byte
	text := c.text
	switch {
	case c.hash != "":
		b, err := hex.DecodeString(c.hash)
		if err != nil || len(b) != sha256.Size {
			return digest, fmt.Errorf("%s_sha256 of %s %q is not 64 hexadecimal digits", c.kind, c.kind, c.name)
		}
		copy(digest[:], b)
		return digest, nil
	case c.file != "":
		var err error
		if text, err = readSecret(c.file); err != nil {
			return digest, fmt.Errorf("%s %q: %w", c.kind, c.name, err)
		}
	}
	if err := checkKey(text); err != nil {
		return digest, fmt.Errorf("%s %q %w", c.kind, c.name, err)
	}
	return sha256.Sum256([]byte(text)), nil
}

// MinKeyLength is the minimum number of characters of an API key and of an admin token.
const MinKeyLength = 16

// checkKey returns an error if text cannot be a bearer key.
func checkKey(text string) error {
	if len(text) < MinKeyLength {
		return fmt.Errorf("is too short: the minimum is %d characters", MinKeyLength)
	}
	return checkHeaderSafe(text)
}

// checkHeaderSafe returns an error if text is invalid in a header.
func checkHeaderSafe(text string) error {
	for _, c := range []byte(text) {
		if c <= ' ' || c > '~' {
			return errors.New("contains white space or other characters that are invalid in a header")
		}
	}
	return nil
}

// resolveDataDir makes data_dir relative to the directory of the configuration file, like all names in it. Commands find the
// relay there, so no other directory may be used instead.
func (l *loader) resolveDataDir(r *Redis) {
	given := r.DataDir
	if given == "" || filepath.IsAbs(given) || l.Origins["redis.data_dir"].Variable != "" {
		return
	}
	r.DataDir = filepath.Join(l.dir, given)
	if abs, err := filepath.Abs(r.DataDir); err == nil {
		r.DataDir = abs
	}
}

// filePath converts a file name into an absolute path and checks that the file can be read.
func (c *converter) filePath(f *field, v *yamldoc.Value, path string) (any, bool) {
	name := v.Text
	if !filepath.IsAbs(name) && v.At.Variable == "" {
		name = filepath.Join(c.dir, name)
	}
	info, err := filewatch.Stat(name)
	switch {
	case err != nil:
		hint := ""
		if !filepath.IsAbs(v.Text) && v.At.Variable == "" {
			hint = "file names are relative to the directory of the configuration file"
		}
		// The value may be the secret itself.
		c.ErrorAt(v.At, path, "the file cannot be read: "+yamldoc.OpenErrorReason(err), hint)
		return nil, false
	case info.IsDir():
		c.ErrorAt(v.At, path, name+" is a directory, not a file", "")
		return nil, false
	case info.Mode()&os.ModeNamedPipe != 0:
		c.ErrorAt(v.At, path, name+" is a pipe, not a file: it cannot be read again when it changes", "")
		return nil, false
	}
	if !isInventory(f.name) { // The migration service reads the inventory.
		if _, err := readSecret(name); err != nil {
			c.ErrorAt(v.At, path, err.Error(), "")
			return nil, false
		}
	}
	if info.Mode().IsRegular() && info.Mode().Perm()&0o004 != 0 && takesSecretFile(f.name) {
		c.Warnings = append(c.Warnings,
			c.Problem(v.At, path, name+" can be read by every user of this machine", "chmod 600 it"))
	}
	if abs, err := filepath.Abs(name); err == nil {
		name = abs
	}
	return name, true
}

// takesSecretFile reports whether key takes the name of a file with a secret.
func takesSecretFile(key string) bool {
	return !isCertificate(key) && !isInventory(key) && !isTemplate(key)
}

func isInventory(key string) bool { return key == "inventory_file" }

// isTemplate reports whether key is a template. Templates are not secrets and may contain "${" literally.
func isTemplate(key string) bool {
	return strings.HasSuffix(strings.TrimSuffix(key, "_file"), "template")
}

func isCertificate(key string) bool {
	return strings.Contains(key, "cert") || strings.HasPrefix(key, "ca_") || strings.HasPrefix(key, "jwks_")
}

var (
	variableReference = onceRegexp(`\$?\$\{[^}]*\}?`)
	variableName      = onceRegexp(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// expandVars replaces ${NAME} in a secret from the environment. $${ is an escaped ${.
func (c *converter) expandVars(v *yamldoc.Value, path string) (string, bool) {
	ok := true
	text := variableReference().ReplaceAllStringFunc(v.Text, func(m string) string {
		if rest, escaped := strings.CutPrefix(m, "$$"); escaped {
			return "$" + rest
		}
		name := strings.TrimSuffix(m[2:], "}")
		if !strings.HasSuffix(m, "}") || !variableName().MatchString(name) {
			c.ErrorAt(v.At, path, "contains a ${ without a NAME}", "write $${ for a literal ${")
			ok = false
			return ""
		}
		value, set := c.environ[name]
		if !set || value == "" {
			c.ErrorAt(v.At, path, fmt.Sprintf("the environment variable %s is not set", name),
				"export it before the start, or use a file instead")
			ok = false
		}
		return value
	})
	return text, ok
}
