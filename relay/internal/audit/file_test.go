package audit

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/hashchain"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

func newTestWriter(t *testing.T, file string, hashChain bool) *fileWriter {
	return newFileWriter(&Options{File: file, HashChain: hashChain, Log: testkit.Log(t)})
}

func writeEntries(t *testing.T, w *fileWriter, n int) {
	t.Helper()
	batch := make([]*Entry, n)
	for i := range batch {
		batch[i] = &Entry{Actor: "admin alice", Action: "sinks.pause", Target: strconv.Itoa(i), Result: ResultOK}
	}
	if got, err := w.write(t.Context(), batch); err != nil || got != n {
		t.Fatalf("got %d written entries, %v; want %d", got, err, n)
	}
}

func readFile(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func verify(t *testing.T, text []byte) hashchain.Result {
	t.Helper()
	r, err := hashchain.Verify(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestFileWriter_ContinuesChain(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "audit.log")
	writeEntries(t, newTestWriter(t, file, true), 3)
	w := newTestWriter(t, file, true) // after a restart
	writeEntries(t, w, 1)
	writeEntries(t, w, 1)
	if err := os.Rename(file, file+".1"); err != nil {
		t.Fatal(err)
	}
	writeEntries(t, w, 2)

	older, newer := readFile(t, file+".1"), readFile(t, file)
	first, second := verify(t, older), verify(t, newer)
	if first.Broken != nil || first.Lines != 5 || first.Unprotected != 0 || first.PreviousSHA256 != hashchain.Zero {
		t.Errorf("the old file: got %+v, want 5 intact lines after 64 zeros", first)
	}
	if second.Broken != nil || second.Lines != 2 || second.PreviousSHA256 != first.LastSHA256 {
		t.Errorf("the new file: got %+v, want 2 lines that follow %s", second, first.LastSHA256)
	}
	if both := verify(t, append(older, newer...)); both.Broken != nil || both.Lines != 7 {
		t.Errorf("both files: got %+v, want 7 intact lines", both)
	}
}

func TestFileWriter_RepairsLastLine(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		hashChain bool
		damage    func(text []byte) []byte
		want      int64
	}{
		"incomplete line":         {true, func(b []byte) []byte { return append(b, `{"time":"20`...) }, 5},
		"only an incomplete line": {true, func([]byte) []byte { return []byte(`{"time":"20`) }, 2},
		"long incomplete line":    {true, func(b []byte) []byte { return append(b, strings.Repeat("x", 3*hashchain.MaxLine)...) }, 5},
		"no line break":           {true, func(b []byte) []byte { return b[:len(b)-1] }, 5},
		"empty file":              {true, func([]byte) []byte { return nil }, 2},
		"without a chain":         {false, func(b []byte) []byte { return append(b, `{"time":"20`...) }, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "audit.log")
			writeEntries(t, newTestWriter(t, file, tt.hashChain), 3)
			if err := os.WriteFile(file, tt.damage(readFile(t, file)), 0o600); err != nil {
				t.Fatal(err)
			}
			writeEntries(t, newTestWriter(t, file, tt.hashChain), 2)
			r := verify(t, readFile(t, file))
			if r.Broken != nil || r.Lines != tt.want || (r.Unprotected == 0) != tt.hashChain {
				t.Errorf("got %+v, want %d intact lines", r, tt.want)
			}
		})
	}
}

// A failed write may leave the start of a line. That entry is written again, so the start is removed.
func TestFileWriter_RepairsFailedWrite(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "audit.log")
	w := newTestWriter(t, file, true)
	writeEntries(t, w, 2)
	complete := readFile(t, file)
	if err := os.WriteFile(file, append(complete, `{}`...), 0o600); err != nil {
		t.Fatal(err)
	}
	w.checked, w.keepTail = false, false // as a failed write leaves them
	writeEntries(t, w, 1)
	if r := verify(t, readFile(t, file)); r.Broken != nil || r.Lines != 3 {
		t.Errorf("got %+v, want 3 intact lines", r)
	}
}

func TestFileWriter_ProtectsOlderLines(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "audit.log")
	writeEntries(t, newTestWriter(t, file, false), 3)
	writeEntries(t, newTestWriter(t, file, true), 2)
	text := readFile(t, file)
	if r := verify(t, text); r.Broken != nil || r.Lines != 5 || r.Unprotected != 3 || r.PreviousSHA256 != "" {
		t.Errorf("got %+v, want 5 lines with 3 unprotected", r)
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	lines[2] = bytes.Replace(lines[2], []byte("alice"), []byte("bob"), 1)
	if r := verify(t, bytes.Join(lines, nil)); r.Broken == nil || r.Broken.Line != 4 {
		t.Errorf("got %+v, want a change before line 4", r)
	}
}

// The writer does not continue from a changed line, even after a failed write.
func TestFileWriter_ShowsChangeWhileRunning(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "audit.log")
	w := newTestWriter(t, file, true)
	writeEntries(t, w, 2)
	// Only the last line has the target 1.
	changed := bytes.Replace(readFile(t, file), []byte(`"target":"1"`), []byte(`"target":"x"`), 1)
	if err := os.WriteFile(file, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	w.checked, w.keepTail = false, false // as a failed write leaves them
	writeEntries(t, w, 1)
	if r := verify(t, readFile(t, file)); r.Broken == nil {
		t.Errorf("got %+v, want a broken line", r)
	}
}

// A tenant chooses names in entries. They must not control the terminal of an operator who reads the file.
func TestFileWriter_EscapesUnprintable(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "audit.log")
	w := newTestWriter(t, file, true)
	if _, err := w.write(t.Context(), []*Entry{{Target: "a\u009b31m\u202e\x7f€\U000e0001", Result: ResultOK}}); err != nil {
		t.Fatal(err)
	}
	text := readFile(t, file)
	if want := `"target":"a\u009b31m\u202e\u007f€\udb40\udc01"`; !strings.Contains(string(text), want) {
		t.Errorf("got %s, want %s", text, want)
	}
	if r := verify(t, text); r.Broken != nil {
		t.Errorf("got %+v, want a valid chain", r)
	}
}
