package term

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEscapeControls(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"\x1b[31mred\x1b[0m größe 日本\n": "\x1b[31mred\x1b[0m größe 日本\n", // our colors
		"a\u009b2Jb":                    `a\u009b2Jb`,
		"\u202eevil\u2066\u200f\x7f":    `\u202eevil\u2066\u200f\u007f`,
		"prod\u200b\U000e0041":          `prod\u200b\udb40\udc41`,
		"\x9b2J":                        "\uFFFD2J",
	} {
		// The result does not depend on how the text is divided into writes.
		for n := 1; n <= len(text); n++ {
			var got, partial []byte
			for start := 0; start < len(text); start += n {
				var safe []byte
				safe, partial = escapeControls(append(partial, text[start:min(start+n, len(text))]...))
				got = append(got, safe...)
			}
			if string(got) != want || len(partial) > 0 {
				t.Errorf("%q in writes of %d bytes: got %q and %q left, want %q", text, n, got, partial, want)
			}
		}
	}
}

// Escaped JSON has the same value.
func TestEscapeControls_JSON(t *testing.T) {
	t.Parallel()
	const value = "a\u009b2J\u202e\u0080\x7f\"\\"
	var line bytes.Buffer
	if err := json.NewEncoder(&line).Encode(value); err != nil {
		t.Fatal(err)
	}
	safe, _ := escapeControls(line.Bytes())
	var got string
	if err := json.Unmarshal(safe, &got); err != nil || got != value {
		t.Errorf("got %q, %v, want %q", got, err, value)
	}
}

// io.WriteString and io.Copy use methods of a file, which would bypass the escapes.
func TestNewErrorOutput_EscapesAllWrites(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "terminal")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	w := NewErrorOutput(f)
	if _, err := io.WriteString(w, "a\u009b"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(w, strings.NewReader("b\u009b")); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(name); err != nil || string(got) != `a\u009bb\u009b` {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestNewOutput_File(t *testing.T) {
	t.Parallel()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if out := NewOutput(f); out != f {
		t.Errorf("got %T for a file, want the file", out)
	}
}
