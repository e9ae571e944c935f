package condition

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/expr-lang/expr/file"

	"github.com/hubrelay/hubrelay/internal/suggest"
	"github.com/hubrelay/hubrelay/relay"
)

// example is the hint if no better one is known.
const example = `write something like topic endsWith ".error" and "production" in context.clusters`

// translateError converts an error of the library into the terms of the configuration.
func translateError(text string, err error) *Error {
	e := &Error{}
	message, offset := err.Error(), 0
	var at *file.Error
	if errors.As(err, &at) {
		e.Line, e.Column, message, offset = at.Line, at.Column+1, at.Message, at.From
	}
	message, _, _ = strings.Cut(message, "\n")
	if name, ok := strings.CutPrefix(message, "unknown name "); ok {
		e.Text, e.Hint = unknownName(name, isCall(text, offset, name))
	} else if m := missingFieldPattern().FindStringSubmatch(message); m != nil {
		e.Text, e.Hint = unknownField(m[1], m[2])
	} else if m := unexpectedTokenPattern().FindStringSubmatch(message); m != nil {
		e.Text, e.Hint = unexpectedToken(m[1])
	} else if kind, ok := strings.CutPrefix(message, "expected bool, but got "); ok {
		e.Text, e.Hint = "results in "+replaceTypeNames(kind)+" instead of true or false", `compare it with `+
			`something, such as object.state == "error"`
	} else {
		e.Text, e.Hint = replaceTypeNames(message), typeHint(message)
	}
	return e
}

// typeHint returns a hint for an error about types.
func typeHint(message string) string {
	mismatch := strings.Contains(message, "mismatched types")
	switch {
	case mismatch && strings.Contains(message, ": in ("):
		return `in requires a list; for text use: topic contains "error"`
	case mismatch && strings.Contains(message, "[]string"):
		return `search a list with in: "production" in context.clusters`
	case mismatch && strings.Contains(message, "string"):
		return "compare text with text in quotes"
	case strings.Contains(message, "takes only array"):
		return `use it with a list: any(context.clusters, # startsWith "prod")`
	case strings.Contains(message, "should return boolean"):
		return `compare each value, which is #: any(context.clusters, # startsWith "prod")`
	case strings.Contains(message, "not terminated"):
		return "close the quotes"
	case strings.HasPrefix(message, "error parsing regexp"):
		return "fix the regular expression"
	}
	return example
}

// isCall reports whether name, at the given offset in text, is followed by a parenthesis.
func isCall(text string, offset int, name string) bool {
	rest := []rune(text)
	if offset > len(rest) {
		return false
	}
	after, _ := strings.CutPrefix(string(rest[offset:]), name)
	return strings.HasPrefix(strings.TrimLeft(after, " "), "(")
}

func unexpectedTokenPattern() *regexp.Regexp {
	return regexp.MustCompile(`^unexpected token (?:EOF|[A-Za-z]+\("(.*)"\))$`)
}

func unexpectedToken(token string) (text, hint string) {
	if token == "" {
		return "ends too early", "complete it; with # or : it may need quotes in YAML"
	}
	text = fmt.Sprintf("%q is not expected here", relay.Truncate(token, 80))
	switch {
	case token == "=":
		return text, "compare two values with =="
	case slices.Contains([]string{"and", "or", "not", "in"}, strings.ToLower(token)):
		return text, "write and, or, not and in in lower case, between complete expressions"
	case slices.Contains([]string{"contains", "startsWith", "endsWith", "matches"}, token):
		return text, fmt.Sprintf(`write it between two values: topic %s "error"`, token)
	}
	return text, example
}

func missingFieldPattern() *regexp.Regexp {
	return regexp.MustCompile(`^type \*?(\S+) has no (?:field|method) (\S+)$`)
}

func unknownName(name string, call bool) (text, hint string) {
	name = relay.Truncate(name, 80)
	if call {
		return fmt.Sprintf("there is no function %q", name), functionHint(name)
	}
	text = fmt.Sprintf("there is no %q", name)
	switch {
	case slices.Contains(objectFields(), name):
		return text, fmt.Sprintf("did you mean object.%s?", name)
	case slices.Contains(contextFields(), name):
		return text, fmt.Sprintf("did you mean context.%s?", name)
	}
	if near := suggest.ClosestName(name, append(rootNames(), allowedFunctions()...)); near != "" {
		return text, fmt.Sprintf("did you mean %q?", near)
	}
	return text, "the names are " + strings.Join(rootNames(), ", ") + "; text goes in quotes"
}

func unknownField(owner, field string) (text, hint string) {
	field = relay.Truncate(field, 80)
	var fields []string
	switch owner {
	case "condition.object":
		owner, fields = "object", objectFields()
	case "condition.context":
		owner, fields = "context", contextFields()
	default:
		return fmt.Sprintf("%s has no %q", replaceTypeNames(owner), field), ""
	}
	text = fmt.Sprintf("%s has no %q", owner, field)
	if near := suggest.ClosestName(field, fields); near != "" {
		return text, fmt.Sprintf("did you mean %q?", near)
	}
	return text, fmt.Sprintf("%s has %s", owner, strings.Join(fields, ", "))
}

// replaceTypeNames replaces Go type names in a message.
func replaceTypeNames(message string) string {
	words := strings.NewReplacer(
		"[]string", "a list of texts", "[]interface {}", "a list", "[]any", "a list", "interface {}", "any value",
		"map[string]any", "a map", "map[string]interface {}", "a map",
		"*condition.", "", "condition.object", "object", "condition.context", "context",
	).Replace(message)
	words = arrayPattern().ReplaceAllString(words, "$1 needs a list")
	return regexp.MustCompile(`\b(string|int|float64|bool)\b`).ReplaceAllStringFunc(words, func(kind string) string {
		return map[string]string{"string": "text", "int": "number", "float64": "number", "bool": "boolean"}[kind]
	})
}

// runtimeMessage returns a message without data of the notification.
func runtimeMessage(message string) string {
	message, _, _ = strings.Cut(message, "\n")
	for _, known := range []string{
		"index out of range", "integer divide by zero", "memory budget exceeded", "cannot fetch", "invalid operation",
	} {
		if strings.Contains(message, known) {
			return known
		}
	}
	return "a value has the wrong type"
}

func arrayPattern() *regexp.Regexp { return regexp.MustCompile(`builtin (\w+) takes only array`) }
