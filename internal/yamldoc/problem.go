package yamldoc

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hubrelay/hubrelay/internal/suggest"
)

// Problem is one error or warning about a document.
type Problem struct {
	// File is the file. It is empty if the value comes from the environment.
	File string
	// Line and Column count from 1. Both are 0 if the file could not be read.
	Line, Column int
	// Variable is the environment variable. It is empty if the value comes from the file.
	Variable string
	// Path is the setting, such as auth.keys[0].name. It is empty for the whole file.
	Path string
	// Message describes the problem. Hint is advice and may be empty.
	Message, Hint string
}

// String returns one line: FILE:LINE:COLUMN: path: problem; hint.
func (p Problem) String() string {
	var b strings.Builder
	switch {
	case p.Variable != "":
		b.WriteString(p.Variable + ": ")
	case p.Line == 0 && p.File != "":
		b.WriteString(p.File + ": ")
	case p.File != "":
		fmt.Fprintf(&b, "%s:%d:%d: ", p.File, p.Line, p.Column)
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	if p.Hint != "" {
		b.WriteString("; " + p.Hint)
	}
	return b.String()
}

// Problems is the error of a document: all problems, sorted by position, one line each.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Sorted sorts problems by position and removes duplicates.
func Sorted(ps []Problem) []Problem {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Variable, b.Variable), a.Line-b.Line, a.Column-b.Column,
			cmp.Compare(a.Path, b.Path))
	})
	return slices.Compact(ps)
}

// Position is the origin of a value: a position in the file, or an environment variable.
type Position struct {
	Variable     string
	Line, Column int
}

// Origins contains the position of each setting, by path.
type Origins map[string]Position

// Of returns the position of path, or of the nearest parent. Otherwise it returns the start of the file.
func (o Origins) Of(path string) Position {
	for {
		if p, ok := o[path]; ok {
			return p
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			break
		}
		path = path[:i]
	}
	if p, ok := o[path]; ok {
		return p
	}
	return Position{Line: 1, Column: 1}
}

// Reporter collects problems and warnings while a document is read. It is not safe for concurrent use.
type Reporter struct {
	// File is the file name as the user wrote it.
	File     string
	Problems []Problem
	Warnings []Problem
	Origins  Origins
}

// Problem returns a Problem at a position, without reporting it.
func (r *Reporter) Problem(at Position, path, text, hint string) Problem {
	p := Problem{Line: at.Line, Column: at.Column, Variable: at.Variable, Path: path, Message: text, Hint: hint}
	if at.Variable == "" {
		p.File = r.File
	}
	return p
}

// ErrorAt reports an error at a position.
func (r *Reporter) ErrorAt(at Position, path, text, hint string) {
	r.Problems = append(r.Problems, r.Problem(at, path, text, hint))
}

// Error reports an invalid value, unless an error was already reported for it.
func (r *Reporter) Error(path, text, hint string) {
	if !r.HasErrors(path) {
		r.ErrorAt(r.Origins.Of(path), path, text, hint)
	}
}

// Warn reports a warning.
func (r *Reporter) Warn(path, text, hint string) {
	r.Warnings = append(r.Warnings, r.Problem(r.Origins.Of(path), path, text, hint))
}

// HasErrors reports whether there is an error at path or below it.
func (r *Reporter) HasErrors(path string) bool {
	return slices.ContainsFunc(r.Problems, func(p Problem) bool {
		rest, ok := strings.CutPrefix(p.Path, path)
		return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// DidYouMean returns a hint with the name that is closest to word, or "" if none is close.
func DidYouMean(word string, names []string) string {
	if n := suggest.ClosestName(word, names); n != "" {
		return fmt.Sprintf("did you mean %q?", n)
	}
	return ""
}
