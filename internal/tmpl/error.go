package tmpl

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/internal/suggest"
	"github.com/hubrelay/hubrelay/relay"
)

// maxShownError is the maximum length of an error text, which may repeat values and parts of the template.
const maxShownError = 300

// TemplateError is an error in a template, or an error of rendering a notification with it.
type TemplateError struct {
	// Line and Column count from 1 in the template. They are 0 if they are unknown.
	Line, Column int
	// Text describes the error. Hint describes how to fix it and may be empty.
	Text, Hint string
	// OverLimit reports that the template exceeds a limit with any notification.
	OverLimit bool
}

func (m *TemplateError) Error() string {
	text := m.Text
	switch {
	case m.Line > 0 && m.Column > 0:
		text = fmt.Sprintf("line %d, column %d: %s", m.Line, m.Column, text)
	case m.Line > 0:
		text = fmt.Sprintf("line %d: %s", m.Line, text)
	}
	if m.Hint != "" {
		text += "; " + m.Hint
	}
	return text
}

// The errors of text/template have no fields, only a text:
// template: NAME:LINE:COLUMN: executing "NAME" at <NODE>: error calling F: CAUSE.
func locationPattern() *regexp.Regexp {
	return regexp.MustCompile(`^(?:html/)?template: ?` + rootName + `:(\d+)(?::(\d+))?: (?s:(.*))$`)
}

func executionPattern() *regexp.Regexp {
	return regexp.MustCompile(`^executing "(?:[^"\\]|\\.)*" at <((?s).*?)>: ((?s).*)$`)
}

// newTemplateError converts an error of text/template or html/template to one in the terms of the manual.
func newTemplateError(err error) *TemplateError {
	var converted *TemplateError
	if errors.As(err, &converted) {
		return converted
	}
	m := &TemplateError{}
	var limit limitError
	m.OverLimit = errors.As(err, &limit)
	text := err.Error()
	if found := locationPattern().FindStringSubmatch(text); found != nil {
		m.Line, _ = strconv.Atoi(found[1])
		m.Column, _ = strconv.Atoi(found[2])
		if m.Column > 0 || found[2] != "" {
			m.Column++ // text/template counts columns from 0
		}
		text = found[3]
	}
	node := ""
	startPattern := regexp.MustCompile(`^(unclosed action|.* in action) started at ` + rootName + `:(\d+)$`)
	text = startPattern.ReplaceAllString(text, "$1 started in line $2")
	if found := executionPattern().FindStringSubmatch(text); found != nil {
		node, text = found[1], found[2]
	}
	for _, name := range []string{stepName, enterName, leaveName} {
		if rest, ok := strings.CutPrefix(text, "error calling "+name+": "); ok {
			node, text, m.Column = "", rest, 0
		}
	}
	text = strings.TrimPrefix(text, "error calling ")
	m.Text, m.Hint = translateError(text)
	if node != "" && !strings.HasPrefix(node, "$(") {
		m.Text = "at " + relay.Truncate(node, 60) + ": " + m.Text
	}
	m.Text = relay.Truncate(m.Text, maxShownError)
	return m
}

// translateError returns the description of an error of text/template, and how to fix it.
func translateError(text string) (problem, hint string) {
	if found := regexp.MustCompile(`^function "(.*)" not defined$`).FindStringSubmatch(text); found != nil {
		if slices.Contains(unsafeFunctions(), found[1]) {
			return found[1] + " is not available in HTML, because all values of events are escaped",
				"write the markup and the start of a URL in the template itself"
		}
		names := append(functionNames(), libraryNames()...)
		return fmt.Sprintf("there is no function %q", found[1]),
			suggestName(found[1], names, "the functions are listed in docs/templates.md")
	}
	fieldPattern := regexp.MustCompile(`^can't evaluate field (\S+) in type \*?(\S+)$`)
	if found := fieldPattern.FindStringSubmatch(text); found != nil {
		names := fieldNames(found[2])
		if len(names) == 0 {
			return "there is no ." + found[1] + " here", "check the value before it"
		}
		return "there is no ." + found[1] + " here",
			suggestName(found[1], names, "there are ."+strings.Join(names, ", ."))
	}
	switch {
	case strings.HasPrefix(text, "nil pointer evaluating"):
		return "the value before it is missing", "check it first: {{ with … }}, or {{ if .Digest }}"
	case strings.Contains(text, "index out of range"):
		return "the list is shorter than that", "ask first whether it has any: {{ if .Context.Containers }}"
	case strings.HasPrefix(text, "unexpected EOF"), strings.HasPrefix(text, "unclosed action"):
		return text, "close what was opened: {{ end }}, or }}"
	case strings.HasPrefix(text, "template ") && strings.HasSuffix(text, " not defined"):
		return text, `define it: {{ define "name" }}…{{ end }}`
	}
	return text, ""
}

// suggestName returns a hint with the closest of names, or fallback if none is close.
func suggestName(name string, names []string, fallback string) string {
	if n := suggest.ClosestName(name, names); n != "" {
		return fmt.Sprintf("did you mean %q?", n)
	}
	return fallback
}

// fieldNames returns the names that a template can use on a type of this package or of package relay.
func fieldNames(typeName string) []string {
	for _, t := range []reflect.Type{
		reflect.TypeFor[Data](), reflect.TypeFor[Digest](),
		reflect.TypeFor[relay.Object](), reflect.TypeFor[relay.Context](),
	} {
		if t.String() != typeName {
			continue
		}
		var names []string
		for _, f := range reflect.VisibleFields(t) {
			if f.IsExported() && !f.Anonymous {
				names = append(names, f.Name)
			}
		}
		if t == reflect.TypeFor[Data]() {
			names = append(names, "Raw", "Data")
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	return nil
}
