package hashchain

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// chainOf returns n lines of a chain without their line breaks.
func chainOf(n int) []string {
	lines := make([]string, n)
	previous := Zero
	for i := range lines {
		lines[i] = fmt.Sprintf(`{"actor":"admin alice","target":"%d","previous_sha256":%q}`, i+1, previous)
		previous = Hash([]byte(lines[i]))
	}
	return lines
}

func verify(t *testing.T, text []byte) Result {
	t.Helper()
	r, err := Verify(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func joinLines(lines []string) string { return strings.Join(lines, "\n") + "\n" }

func TestVerify_FirstBrokenLine(t *testing.T) {
	t.Parallel()
	forged := func(previous string) string { return `{"action":"x","previous_sha256":"` + previous + `"}` }
	change := func(i int) func([]string) []string {
		return func(l []string) []string {
			l[i] = strings.Replace(l[i], "alice", "bob", 1)
			return l
		}
	}
	insert := func(i int, line func(l []string) string) func([]string) []string {
		return func(l []string) []string { return slices.Insert(l, i, line(l)) }
	}
	remove := func(i, j int) func([]string) []string {
		return func(l []string) []string { return slices.Delete(l, i, j) }
	}
	for name, tt := range map[string]struct {
		tamper func([]string) []string
		line   int64 // 0: intact
		reason Reason
	}{
		"intact":              {remove(0, 0), 0, ""},
		"start removed":       {remove(0, 2), 0, ""}, // PreviousSHA256 shows it
		"end removed":         {remove(4, 6), 0, ""}, // LastSHA256 shows it
		"last changed":        {change(5), 0, ""},
		"first changed":       {change(0), 2, ReasonChangedOrRemoved},
		"changed":             {change(2), 4, ReasonChangedOrRemoved},
		"removed":             {remove(2, 3), 3, ReasonChangedOrRemoved},
		"removed before last": {remove(4, 5), 5, ReasonChangedOrRemoved},
		"hash changed":        {func(l []string) []string { l[2] = forged(Zero); return l }, 3, ReasonChanged},
		"inserted":            {insert(2, func([]string) string { return forged(Zero) }), 3, ReasonInserted},
		"inserted forged":     {insert(2, func(l []string) string { return forged(Hash([]byte(l[1]))) }), 3, ReasonInserted},
		"inserted first":      {insert(0, func([]string) string { return forged(Zero) }), 1, ReasonInserted},
		"inserted no hash":    {insert(2, func([]string) string { return `{"action":"x"}` }), 3, ReasonNoHash},
		"hash is a number":    {insert(2, func([]string) string { return `{"previous_sha256":1}` }), 3, ReasonNoHash},
		"hash is null":        {insert(2, func([]string) string { return `{"previous_sha256":null}` }), 3, ReasonNoHash},
		"not JSON":            {insert(2, func([]string) string { return "{" }), 3, ReasonNotJSON},
		"not an object":       {insert(2, func([]string) string { return "null" }), 3, ReasonNotJSON},
		"empty line":          {insert(2, func([]string) string { return "" }), 3, ReasonNotJSON},
		"two faults":          {func(l []string) []string { return change(4)(change(1)(l)) }, 3, ReasonChangedOrRemoved},
		"removed and not JSON": {
			func(l []string) []string { return slices.Insert(slices.Delete(l, 1, 2), 2, "{") }, 2, ReasonChangedOrRemoved,
		},
		"too long": {
			insert(2, func([]string) string { return `{"a":"` + strings.Repeat("x", MaxLine) + `"}` }), 3, ReasonTooLong,
		},
	} {
		lines := tt.tamper(chainOf(6))
		got := verify(t, []byte(joinLines(lines)))
		if got.Lines != int64(len(lines)) || got.LastSHA256 != Hash([]byte(lines[len(lines)-1])) {
			t.Errorf("%s: got %+v, want %d lines and the hash of the last one", name, got, len(lines))
		}
		if tt.line == 0 {
			if got.Broken != nil {
				t.Errorf("%s: got %+v, want no broken line", name, *got.Broken)
			}
			continue
		}
		if want := (BrokenLine{tt.line, tt.reason}); got.Broken == nil || *got.Broken != want {
			t.Errorf("%s: got %+v, want %+v", name, got.Broken, want)
		}
	}
}

func TestVerify_LineLength(t *testing.T) {
	t.Parallel()
	const rest = `{"a":"","previous_sha256":"` + Zero + `"}`
	for _, size := range []int{1, 64 << 10, MaxLine} {
		line := strings.Replace(rest, `""`, `"`+strings.Repeat("x", max(0, size-len(rest)))+`"`, 1)
		want := Result{Lines: 1, PreviousSHA256: Zero, LastSHA256: Hash([]byte(line))}
		for _, end := range []string{"", "\n"} {
			if got := verify(t, []byte(line+end)); got != want {
				t.Errorf("%d bytes: got %+v, want %+v", size, got, want)
			}
		}
	}
	if got := verify(t, nil); got != (Result{}) {
		t.Errorf("no line: got %+v", got)
	}
}

func TestVerify_ReturnsReadError(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken disk")
	if _, err := Verify(iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}

// The memory does not depend on the length of a line or of the file.
func TestLineReader_LimitsMemory(t *testing.T) {
	t.Parallel()
	text := []byte(joinLines([]string{strings.Repeat("x", 16*MaxLine), "{}"}))
	r := newLineReader(bytes.NewReader(text))
	for {
		if _, err := r.next(); err != nil {
			break
		}
	}
	if got := cap(r.text); got > 2*MaxLine {
		t.Errorf("got a buffer of %d bytes, want at most %d", got, 2*MaxLine)
	}
}

// FuzzVerify checks that no text causes an error, and that no line of an intact chain can be removed or repeated.
func FuzzVerify(f *testing.F) {
	lines := chainOf(4)
	f.Add([]byte(joinLines(lines)))
	f.Add([]byte(joinLines(lines[1:])))
	f.Add([]byte(joinLines(slices.Delete(slices.Clone(lines), 1, 2))))
	f.Add([]byte(joinLines(slices.Insert(slices.Clone(lines), 2, lines[0]))))
	f.Add([]byte("{\"action\":\"x\"}\n" + joinLines(lines)))
	f.Add([]byte("{\"previous_sha256\":\"\"}\n{"))
	f.Add([]byte("\n\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		got := verify(t, text)
		lines := strings.SplitAfter(string(text), "\n")
		if lines[len(lines)-1] == "" {
			lines = lines[:len(lines)-1]
		}
		if got.Lines != int64(len(lines)) || got.Unprotected > got.Lines {
			t.Fatalf("got %+v, want %d lines", got, len(lines))
		}
		if len(lines) > 0 && got.LastSHA256 != Hash([]byte(strings.TrimSuffix(lines[len(lines)-1], "\n"))) {
			t.Errorf("got %+v, want the hash of the last line", got)
		}
		if got.Broken != nil {
			if got.Broken.Line < 1 || got.Broken.Line > got.Lines || got.Broken.Reason == "" {
				t.Errorf("got %+v of %d lines", got.Broken, got.Lines)
			}
			return
		}
		for i := int(got.Unprotected); i < len(lines)-1; i++ {
			if i > 0 && verify(t, []byte(strings.Join(slices.Delete(slices.Clone(lines), i, i+1), ""))).Broken == nil {
				t.Errorf("line %d can be removed from %q", i+1, text)
			}
			repeated := slices.Insert(slices.Clone(lines), i, lines[i])
			if verify(t, []byte(strings.Join(repeated, ""))).Broken == nil {
				t.Errorf("line %d can be repeated in %q", i+1, text)
			}
		}
	})
}
