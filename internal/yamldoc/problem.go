package yamldoc

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

// Problem is one mistake in a document, or one warning about it.
type Problem struct {
	// File is the file, empty where the value came from the environment.
	File string
	// Line and Column count from 1; both are 0 where the file could not be read at all.
	Line, Column int
	// Variable is the environment variable, empty where the value came from the file.
	Variable string
	// Path is the setting, such as auth.keys[0].name; empty where the whole file is meant.
	Path string
	// Message says what is wrong; Hint says what to do about it and may be empty.
	Message, Hint string
}

// String is one Line: FILE:LINE:COLUMN: path: problem; hint.
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

// Problems is the error of a document: everything that is wrong, by place, one line each.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Sorted orders problems by place, and removes those that are there twice.
func Sorted(ps []Problem) []Problem {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Variable, b.Variable), a.Line-b.Line, a.Column-b.Column,
			cmp.Compare(a.Path, b.Path))
	})
	return slices.Compact(ps)
}

// Position is where a value came from: a place in the file, or an environment variable.
type Position struct {
	Variable     string
	Line, Column int
}

// Origins remembers the position of every setting that was given, by path.
type Origins map[string]Position

// Of returns the position of path, or of the nearest setting above it, or the beginning of the file.
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

// Reporter gathers problems and warnings while a document is read. It belongs to one goroutine.
type Reporter struct {
	// File is the name of what is read, as the user wrote it.
	File     string
	Problems []Problem
	Warnings []Problem
	Origins  Origins
}

// Problem returns one at a position, and reports nothing.
func (r *Reporter) Problem(at Position, path, text, hint string) Problem {
	p := Problem{Line: at.Line, Column: at.Column, Variable: at.Variable, Path: path, Message: text, Hint: hint}
	if at.Variable == "" {
		p.File = r.File
	}
	return p
}

// ErrorAt reports a mistake at a position.
func (r *Reporter) ErrorAt(at Position, path, text, hint string) {
	r.Problems = append(r.Problems, r.Problem(at, path, text, hint))
}

// Error reports a value that was read but is not acceptable, unless something was wrong with it already.
func (r *Reporter) Error(path, text, hint string) {
	if !r.HasErrors(path) {
		r.ErrorAt(r.Origins.Of(path), path, text, hint)
	}
}

// Warn reports what stops nothing.
func (r *Reporter) Warn(path, text, hint string) {
	r.Warnings = append(r.Warnings, r.Problem(r.Origins.Of(path), path, text, hint))
}

// HasErrors says whether a problem was reported at path or below it.
func (r *Reporter) HasErrors(path string) bool {
	return slices.ContainsFunc(r.Problems, func(p Problem) bool {
		rest, ok := strings.CutPrefix(p.Path, path)
		return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// DidYouMean is the hint that names what word was most likely meant to be, empty where nothing is near.
func DidYouMean(word string, names []string) string {
	if n := relay.ClosestName(word, names); n != "" {
		return fmt.Sprintf("did you mean %q?", n)
	}
	return ""
}
