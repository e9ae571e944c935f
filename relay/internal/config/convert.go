package config

import (
	"encoding"
	"fmt"
	"math"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/internal/durations"
	"github.com/hubrelay/hubrelay/internal/yamldoc"
	"github.com/hubrelay/hubrelay/relay"
)

// converter converts YAML values to the plain Go values that koanf merges. It checks each value against the
// schema.
type converter struct {
	*yamldoc.Reporter
	root          *node
	dir           string // directory of the configuration file, for relative file names
	environ       map[string]string
	types         map[string]string // types of the sinks, by name
	upstreams     map[string]string // types of the sources, by name
	count         int
	inlineSecrets []string // paths of secrets that are written in the file
}

// convert returns the value for the schema n. The second result is false if there is no valid value.
func (c *converter) convert(n *node, f *field, v *yamldoc.Value, path string) (any, bool) {
	if c.count++; c.count > yamldoc.MaxValues {
		if c.count == yamldoc.MaxValues+1 {
			c.ErrorAt(v.At, path, fmt.Sprintf("exceeds the limit of %d values", yamldoc.MaxValues), "")
		}
		return nil, false
	}
	if v.Invalid || v.Shape == yamldoc.Null { // A key without a value counts as missing.
		return nil, false
	}
	if _, known := c.Origins[path]; !known || n.kind != kindObject && n.kind != kindSinks && n.kind != kindNamed {
		c.Origins[path] = v.At
	}
	switch n.kind {
	case kindObject, kindSinks, kindNamed, kindMap:
		if v.Shape != yamldoc.Map {
			c.wrongShape(n, f, v, path)
			return nil, false
		}
		switch n.kind {
		case kindObject:
			return c.convertObject(n, v, path), true
		case kindSinks:
			return c.namedObjects(v, path, "a sink", func(name string) *node { return c.sinkNode(n, name) }), true
		case kindNamed:
			return c.namedObjects(v, path, "a source", func(string) *node { return n.elem }), true
		default:
			return c.freeMap(n, f, v, path), true
		}
	case kindList:
		if v.Shape != yamldoc.List {
			c.wrongShape(n, f, v, path)
			return nil, false
		}
		list := make([]any, 0, len(v.Items))
		for i, item := range v.Items {
			below := fmt.Sprintf("%s[%d]", path, i)
			if item.Shape == yamldoc.Null && !item.Invalid {
				c.ErrorAt(item.At, below, "is empty", "write a value or remove the item")
			}
			x, _ := c.convert(n.elem, f, item, below)
			list = append(list, x) // An invalid item becomes nil, so the indexes in later messages are correct.
		}
		return list, true
	case kindAny:
		return c.freeValue(f, v, path)
	default:
		return c.convertScalar(n, f, v, path)
	}
}

func (c *converter) convertObject(n *node, v *yamldoc.Value, path string) map[string]any {
	m := make(map[string]any, len(v.Entries))
	for _, e := range v.Entries {
		below := yamldoc.Join(path, e.Key)
		f := n.field(e.Key)
		if f == nil {
			c.reportUnknown(n, e, path)
			continue
		}
		c.Origins[below] = e.At
		if x, ok := c.convert(f.node, f, e.Value, below); ok {
			m[e.Key] = x
		}
	}
	return m
}

var sinkName = onceRegexp(`^[a-z0-9][a-z0-9_-]{0,62}$`)

// onceRegexp returns a function that compiles the expression in its first call. Most commands of the program need none.
func onceRegexp(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

// namedObjects converts a map of named objects. The function schema returns the schema of each.
func (c *converter) namedObjects(v *yamldoc.Value, path, noun string, schema func(name string) *node) map[string]any {
	valid := sinkName()
	m := make(map[string]any, len(v.Entries))
	for _, e := range v.Entries {
		below := yamldoc.Join(path, e.Key)
		c.Origins[below] = e.At
		if !valid.MatchString(e.Key) {
			c.ErrorAt(e.At, below, "is not a valid name for "+noun,
				"start with a lower-case letter or a digit, then up to 62 of a-z, 0-9, _ and -")
			continue
		}
		if x, ok := c.convert(schema(e.Key), nil, e.Value, below); ok {
			m[e.Key] = x
		} else if e.Value.Shape == yamldoc.Null {
			m[e.Key] = map[string]any{}
		}
	}
	return m
}

// sinkNode returns the schema of a sink. If the type is missing or unknown, which loadSinks reports, it accepts
// the keys of all types.
func (c *converter) sinkNode(n *node, name string) *node {
	if own, ok := n.types[c.types[name]]; ok {
		return own
	}
	all := &node{kind: kindObject, fields: slices.Clone(n.fields), types: n.types, anyType: true}
	for _, t := range n.sinkTypes() {
		for _, f := range n.types[t].fields {
			if all.field(f.name) == nil {
				all.fields = append(all.fields, f)
			}
		}
	}
	return all
}

func (c *converter) freeMap(n *node, f *field, v *yamldoc.Value, path string) map[string]any {
	m := make(map[string]any, len(v.Entries))
	for _, e := range v.Entries {
		below := yamldoc.Join(path, e.Key)
		if x, ok := c.convert(n.elem, f, e.Value, below); ok {
			m[e.Key] = x
		} else if e.Value.Shape == yamldoc.Null && f != nil && f.secrecy != public {
			c.reportRest(e, path)
		}
	}
	return m
}

func (c *converter) freeValue(f *field, v *yamldoc.Value, path string) (any, bool) {
	switch v.Shape {
	case yamldoc.Map:
		return c.freeMap(&node{kind: kindMap, elem: &node{kind: kindAny}}, f, v, path), true
	case yamldoc.List:
		return c.convert(&node{kind: kindList, elem: &node{kind: kindAny}}, f, v, path)
	case yamldoc.String:
		return c.expandText(f, v, path)
	}
	return v.Scalar(), true
}

func (c *converter) wrongShape(n *node, f *field, v *yamldoc.Value, path string) {
	want, hint := "a map", ""
	if n.kind == kindList {
		want = "a list"
		if v.Shape != yamldoc.Map && f != nil && !slices.Contains([]kind{kindObject, kindAny}, n.elem.kind) {
			hint = "write it between [ and ], with commas between the items"
			if f.secrecy == public && v.Text != "" && !strings.ContainsAny(v.Text, `"'\<`) {
				hint = "write [" + formatWords(v.Text) + "]"
			}
		}
		if v.Shape == yamldoc.Map && n.elem.kind == kindObject {
			hint = `begin each item with "- "`
		}
	}
	c.ErrorAt(v.At, path, fmt.Sprintf("must be %s, not %s", want, v.Shape), hint)
}

// formatWords formats text as the items of a list in YAML, because a command or several patterns are often written as one
// text.
func formatWords(text string) string {
	words := strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ',' })
	for i, w := range words {
		words[i] = scalarYAML(w)
	}
	return strings.Join(words, ", ")
}

// convertScalar parses a scalar with the schema n. A string accepts numbers and booleans in their original
// spelling, because identifiers often look like them.
func (c *converter) convertScalar(n *node, f *field, v *yamldoc.Value, path string) (any, bool) {
	if v.Shape == yamldoc.List || v.Shape == yamldoc.Map {
		c.ErrorAt(v.At, path, fmt.Sprintf("must be %s, not %s", kindName(n.kind), v.Shape), "")
		return nil, false
	}
	if n.kind == kindString {
		return c.expandText(f, v, path)
	}
	x, hint := parseScalar(n, v)
	if x == nil {
		shown := strconv.Quote(relay.Truncate(v.Text, maxQuoted))
		if f != nil && f.secrecy != public {
			shown = "this"
		}
		if f != nil && f.secrecy != public && n.kind == kindText {
			hint = "" // the error of the type may repeat the secret
		}
		c.ErrorAt(v.At, path, fmt.Sprintf("%s is not %s", shown, kindName(n.kind)), hint)
		return nil, false
	}
	return x, true
}

func kindName(k kind) string {
	switch k {
	case kindBool:
		return "true or false"
	case kindInt:
		return "a whole number"
	case kindFloat:
		return "a number"
	case kindDuration:
		return "a duration"
	case kindSize:
		return "a size"
	case kindTime:
		return "a time"
	case kindText:
		return "a valid value"
	default:
		return "a string"
	}
}

// parseScalar returns the value, or nil and a hint.
func parseScalar(n *node, v *yamldoc.Value) (any, string) {
	quoted := v.Shape == yamldoc.String && v.At.Variable == ""
	switch n.kind {
	case kindBool:
		if b, err := strconv.ParseBool(v.Text); err == nil && !quoted {
			return b, ""
		}
		return nil, "write true or false, without quotes"
	case kindInt:
		i, err := yamldoc.ParseInt(v.Text)
		if err == nil && !quoted && !reflect.Zero(n.typ).OverflowInt(i) {
			return i, ""
		}
		return nil, "write digits, without quotes"
	case kindFloat:
		if x, err := strconv.ParseFloat(v.Text, 64); err == nil && !quoted && !math.IsInf(x, 0) && !math.IsNaN(x) {
			return x, ""
		}
		return nil, "write digits, without quotes"
	case kindDuration:
		if d, err := durations.Parse(v.Text); err == nil && (v.Shape == yamldoc.String || d == 0) {
			return d, ""
		}
		return nil, "write a number with its unit, such as 500ms, 15s, 5m, 96h or 2w"
	case kindSize:
		if s, err := ParseSize(v.Text); err == nil {
			return s, ""
		}
		return nil, "write a number of bytes, optionally with KiB or MiB, such as 1MiB"
	case kindTime:
		if v.Text == "" {
			return time.Time{}, ""
		}
		for _, layout := range []string{time.RFC3339, time.DateOnly} {
			if t, err := time.Parse(layout, v.Text); err == nil {
				return t, ""
			}
		}
		return nil, "write 2027-01-31 or 2027-01-31T12:00:00Z"
	}
	if x, ok := reflect.New(n.typ).Interface().(encoding.TextUnmarshaler); ok {
		if err := x.UnmarshalText([]byte(v.Text)); err != nil {
			return nil, err.Error()
		}
	}
	return v.Text, "" // decode parses it again
}

func (c *converter) expandText(f *field, v *yamldoc.Value, path string) (any, bool) {
	if f == nil {
		return v.Text, true
	}
	text := v.Text
	switch {
	case f.secrecy != public:
		expanded, ok := c.expandVars(v, path)
		if !ok {
			return nil, false
		}
		if text != "" && text == expanded && v.At.Line > 0 && f.containsSecret(text, path) {
			c.inlineSecrets = append(c.inlineSecrets, path)
		}
		text = expanded
	case f.file && text != "":
		return c.filePath(f, v, path)
	case strings.Contains(text, "${") && !isTemplate(f.name):
		c.Warnings = append(c.Warnings, c.Problem(v.At, path, "${…} is literal here: only secrets are expanded "+
			"from the environment",
			"write the value itself"))
	}
	if len(f.enum) > 0 && !slices.Contains(f.enum, text) {
		hint := yamldoc.DidYouMean(text, f.enum)
		switch {
		case hint != "":
		case slices.Contains(brokerNames, strings.ToLower(text)) && slices.Contains(f.enum, "plugin"):
			hint = "brokers are plugins: write type: plugin, command: [hubrelay-brokers], config: {broker: …}"
		default:
			hint = "choose one of " + strings.Join(f.enum, ", ")
		}
		c.ErrorAt(v.At, path, fmt.Sprintf("%q is not a valid value", relay.Truncate(text, maxQuoted)), hint)
		return nil, false
	}
	return text, true
}

// containsSecret reports whether text, the value of f at path, contains a secret. Not every field that is never shown does:
// it may be a hash or an address without a password. In a map and in an environment, the names of the values decide.
func (f *field) containsSecret(text, path string) bool {
	name, _, isVariable := strings.Cut(text, "=")
	switch {
	case f.secrecy == secretURL:
		u, err := url.Parse(text)
		if err != nil || u.User == nil {
			return false
		}
		_, hasPassword := u.User.Password()
		return hasPassword
	case strings.HasSuffix(f.name, "_sha256"):
		return false
	case f.name == "env":
		return isVariable && namesSecret(name)
	case f.node.kind == kindMap || f.node.kind == kindAny:
		return namesSecret(strings.TrimRight(path, `0123456789[]"`))
	}
	return true
}

func namesSecret(name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc(
		[]string{"key", "token", "secret", "secrets", "password", "authorization", "cookie"},
		func(word string) bool { return strings.HasSuffix(name, word) },
	)
}

// maxQuoted is the maximum number of bytes of a value in a message.
const maxQuoted = 60
