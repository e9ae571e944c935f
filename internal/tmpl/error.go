package tmpl

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

// maxShownError bounds what a mistake repeats of values and of the template.
const maxShownError = 300

// TemplateError is what is wrong with a template, or with what it does with a notification.
type TemplateError struct {
	// Line and Column count from 1 in the template; they are 0 where they are not known.
	Line, Column int
	// Text says what is wrong; Hint says what to do about it and may be empty.
	Text, Hint string
	// OverLimit says that the template does too much, whatever the notification.
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

// The library's errors are texts alone: template: NAME:LINE:COLUMN: executing "NAME" at <NODE>: error calling F: what.
func locationPattern() *regexp.Regexp {
	return regexp.MustCompile(`^(?:html/)?template: ?` + rootName + `:(\d+)(?::(\d+))?: (?s:(.*))$`)
}

func executionPattern() *regexp.Regexp {
	return regexp.MustCompile(`^executing "(?:[^"\\]|\\.)*" at <((?s).*?)>: ((?s).*)$`)
}

// newTemplateError says what the library said in words of the manual.
func newTemplateError(err error) *TemplateError {
	var done *TemplateError
	if errors.As(err, &done) {
		return done
	}
	m := &TemplateError{}
	var limit limitError
	m.OverLimit = errors.As(err, &limit)
	text := err.Error()
	if found := locationPattern().FindStringSubmatch(text); found != nil {
		m.Line, _ = strconv.Atoi(found[1])
		m.Column, _ = strconv.Atoi(found[2])
		if m.Column > 0 || found[2] != "" {
			m.Column++ // the library counts columns from 0
		}
		text = found[3]
	}
	node := ""
	text = regexp.MustCompile(`^(unclosed action|.* in action) started at `+rootName+`:(\d+)$`).ReplaceAllString(text, "$1 started in line $2")
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

// translateError gives the words for a message of the library, and what to do.
func translateError(text string) (what, hint string) {
	if found := regexp.MustCompile(`^function "(.*)" not defined$`).FindStringSubmatch(text); found != nil {
		if slices.Contains(unsafeFunctions(), found[1]) {
			return found[1] + " has no place where HTML is made, since all that notifications hold is escaped there", "write markup and the beginning of an address into the template itself"
		}
		return fmt.Sprintf("there is no function %q", found[1]), suggestion(found[1], append(functionNames(), libraryNames()...), "the functions are listed in docs/templates.md")
	}
	if found := regexp.MustCompile(`^can't evaluate field (\S+) in type \*?(\S+)$`).FindStringSubmatch(text); found != nil {
		names := fieldNames(found[2])
		if len(names) == 0 {
			return "there is no " + found[1] + " in this", "look at what stands before it"
		}
		return "there is no ." + found[1] + " here", suggestion(found[1], names, "there are ."+strings.Join(names, ", ."))
	}
	switch {
	case strings.HasPrefix(text, "nil pointer evaluating"):
		return "what stands before it is not there", "ask for it first: {{ with … }}, or {{ if .Digest }}"
	case strings.Contains(text, "index out of range"):
		return "the list is shorter than that", "ask first whether it has any: {{ if .Context.Containers }}"
	case strings.HasPrefix(text, "unexpected EOF"), strings.HasPrefix(text, "unclosed action"):
		return text, "close what was opened: {{ end }}, or }}"
	case strings.HasPrefix(text, "template ") && strings.HasSuffix(text, " not defined"):
		return text, `define it: {{ define "name" }}…{{ end }}`
	}
	return text, ""
}

func suggestion(name string, names []string, other string) string {
	if n := relay.ClosestName(name, names); n != "" {
		return fmt.Sprintf("did you mean %q?", n)
	}
	return other
}

// fieldNames are what a template can ask one of our types for.
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
