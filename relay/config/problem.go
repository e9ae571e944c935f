package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

// Problem is one mistake in the configuration, or one warning about it.
type Problem struct {
	// File is the configuration file, empty where the value came from the environment.
	File string
	// Line and Column count from 1; both are 0 where the file could not be read at all.
	Line, Column int
	// Variable is the environment variable, empty where the value came from the file.
	Variable string
	// Path is the setting, such as auth.keys[0].name; empty where the whole file is meant.
	Path string
	// Text says what is wrong; Hint says what to do about it and may be empty.
	Text, Hint string
}

// String is one line: FILE:LINE:COLUMN: path: problem; hint.
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
	b.WriteString(p.Text)
	if p.Hint != "" {
		b.WriteString("; " + p.Hint)
	}
	return b.String()
}

// Problems is the error of [Load]: everything that is wrong, by place, one line each.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

func sortProblems(ps []Problem) []Problem {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Variable, b.Variable), a.Line-b.Line, a.Column-b.Column,
			cmp.Compare(a.Path, b.Path))
	})
	return slices.Compact(ps)
}

// position is where a value came from: a place in the file, or an environment variable.
type position struct {
	variable     string
	line, column int
}

// origins remembers the position of every setting that was given, by path.
type origins map[string]position

// of returns the position of path, or of the nearest setting above it, or the beginning of the file.
func (o origins) of(path string) position {
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
	return position{line: 1, column: 1}
}

// reporter gathers problems and warnings while a configuration is read.
type reporter struct {
	file     string
	problems []Problem
	warnings []Problem
	origins  origins
}

func (r *reporter) problem(at position, path, text, hint string) Problem {
	p := Problem{Line: at.line, Column: at.column, Variable: at.variable, Path: path, Text: text, Hint: hint}
	if at.variable == "" {
		p.File = r.file
	}
	return p
}

func (r *reporter) badAt(at position, path, text, hint string) {
	r.problems = append(r.problems, r.problem(at, path, text, hint))
}

// bad reports a value that was read but is not acceptable, unless something was wrong with it already.
func (r *reporter) bad(path, text, hint string) {
	if !r.failed(path) {
		r.badAt(r.origins.of(path), path, text, hint)
	}
}

func (r *reporter) warn(path, text, hint string) {
	r.warnings = append(r.warnings, r.problem(r.origins.of(path), path, text, hint))
}

// failed says whether a problem was reported at path or below it.
func (r *reporter) failed(path string) bool {
	return slices.ContainsFunc(r.problems, func(p Problem) bool {
		rest, ok := strings.CutPrefix(p.Path, path)
		return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

func didYouMean(word string, names []string) string {
	if n := relay.Nearest(word, names); n != "" {
		return fmt.Sprintf("did you mean %q?", n)
	}
	return ""
}
