package config

import (
	"encoding"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// converter turns YAML values into the plain Go values that koanf merges, checking each against the schema.
type converter struct {
	*reporter
	root    *node
	folder  string // of the configuration file; relative file names begin there
	environ map[string]string
	types   map[string]string // of sinks, by name
	count   int
}

// laterKeys are names of the design that this version does not have.
func laterKeys() []string { return []string{"sources", "migration"} }

// convert returns the value for the schema n. The second result is false where nothing usable was given.
func (c *converter) convert(n *node, f *field, v *value, path string) (any, bool) {
	if c.count++; c.count > maxValues {
		if c.count == maxValues+1 {
			c.badAt(v.at, path, fmt.Sprintf("is too much: %d values are the limit", maxValues), "")
		}
		return nil, false
	}
	if v.broken || v.shape == shapeNull { // a key without a value: as if it were not there
		return nil, false
	}
	if _, known := c.origins[path]; !known || n.kind != kindObject && n.kind != kindSinks {
		c.origins[path] = v.at
	}
	switch n.kind {
	case kindObject, kindSinks, kindMap:
		if v.shape != shapeMap {
			c.wrongShape(n, f, v, path)
			return nil, false
		}
		switch n.kind {
		case kindObject:
			return c.object(n, v, path), true
		case kindSinks:
			return c.sinks(n, v, path), true
		default:
			return c.freeMap(n, f, v, path), true
		}
	case kindList:
		if v.shape != shapeList {
			c.wrongShape(n, f, v, path)
			return nil, false
		}
		list := make([]any, 0, len(v.items))
		for i, item := range v.items {
			below := fmt.Sprintf("%s[%d]", path, i)
			if item.shape == shapeNull && !item.broken {
				c.badAt(item.at, below, "is empty", "write a value or leave the item out")
			}
			x, _ := c.convert(n.elem, f, item, below)
			list = append(list, x) // nil where it failed: later messages count the items too
		}
		return list, true
	case kindAny:
		return c.anything(f, v, path)
	default:
		return c.scalar(n, f, v, path)
	}
}

func (c *converter) object(n *node, v *value, path string) map[string]any {
	m := make(map[string]any, len(v.entries))
	for _, e := range v.entries {
		below := join(path, e.key)
		f := n.field(e.key)
		if f == nil {
			c.unknown(n, e, path)
			continue
		}
		c.origins[below] = e.at
		if x, ok := c.convert(f.node, f, e.value, below); ok {
			m[e.key] = x
		}
	}
	return m
}

func (c *converter) unknown(n *node, e entry, path string) {
	below := join(path, e.key)
	if slices.Contains(laterKeys(), e.key) {
		c.badAt(e.at, below, "this version does not have it", "leave it out")
		return
	}
	hint := didYouMean(e.key, n.names())
	if hint == "" {
		if home := c.home(c.root, e.key, ""); home != "" && home != path && !strings.HasPrefix(path, "sinks.") {
			hint = "it belongs to " + home
		} else {
			hint = "the keys here are " + strings.Join(n.names(), ", ")
		}
	}
	c.badAt(e.at, below, "unknown key", hint)
}

// home returns the path of the section that has the key, outside of sinks.
func (c *converter) home(n *node, key, path string) string {
	for _, f := range n.fields {
		if f.node.kind != kindObject {
			continue
		}
		if f.node.field(key) != nil {
			return join(path, f.name)
		}
		if home := c.home(f.node, key, join(path, f.name)); home != "" {
			return home
		}
	}
	return ""
}

func sinkName() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`) }

func (c *converter) sinks(n *node, v *value, path string) map[string]any {
	valid := sinkName()
	m := make(map[string]any, len(v.entries))
	for _, e := range v.entries {
		below := join(path, e.key)
		c.origins[below] = e.at
		if !valid.MatchString(e.key) {
			c.badAt(e.at, below, "is no name for a sink", "begin with a small letter or a digit, then up to 62 of a-z, 0-9, _ and -")
			continue
		}
		if x, ok := c.convert(c.sinkNode(n, e.key), nil, e.value, below); ok {
			m[e.key] = x
		} else if e.value.shape == shapeNull {
			m[e.key] = map[string]any{}
		}
	}
	return m
}

// sinkNode is the schema of the sink of that name. Where its type is missing or unknown, which is reported elsewhere,
// the keys of all types are accepted.
func (c *converter) sinkNode(n *node, name string) *node {
	if own, ok := n.types[c.types[name]]; ok {
		return own
	}
	all := &node{kind: kindObject, fields: slices.Clone(n.fields)}
	for _, t := range n.sinkTypes() {
		for _, f := range n.types[t].fields {
			if all.field(f.name) == nil {
				all.fields = append(all.fields, f)
			}
		}
	}
	return all
}

func (c *converter) freeMap(n *node, f *field, v *value, path string) map[string]any {
	m := make(map[string]any, len(v.entries))
	for _, e := range v.entries {
		below := join(path, e.key)
		if x, ok := c.convert(n.elem, f, e.value, below); ok {
			m[e.key] = x
		}
	}
	return m
}

func (c *converter) anything(f *field, v *value, path string) (any, bool) {
	switch v.shape {
	case shapeMap:
		return c.freeMap(&node{kind: kindMap, elem: &node{kind: kindAny}}, f, v, path), true
	case shapeList:
		return c.convert(&node{kind: kindList, elem: &node{kind: kindAny}}, f, v, path)
	case shapeString:
		return c.text(f, v, path)
	case shapeBool:
		return v.text == "true", true
	case shapeInt:
		if i, err := parseInt(v.text); err == nil {
			return i, true
		}
	case shapeFloat:
		if x, err := strconv.ParseFloat(v.text, 64); err == nil && !math.IsInf(x, 0) && !math.IsNaN(x) {
			return x, true
		}
	}
	return v.text, true
}

func parseInt(s string) (int64, error) {
	return strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 10, 64)
}

func (c *converter) wrongShape(n *node, f *field, v *value, path string) {
	want, hint := "a map", ""
	if n.kind == kindList {
		want = "a list"
		if v.shape != shapeMap && isText(n) && f != nil {
			hint = "write it between [ and ]"
			if f.secrecy == public {
				hint = "write [" + scalarYAML(v.text) + "]"
			}
		}
	}
	c.badAt(v.at, path, fmt.Sprintf("must be %s, not %s", want, v.shape), hint)
}

// scalar reads one text by the schema n. Strings take numbers and booleans as they are written, because identifiers
// often look like them.
func (c *converter) scalar(n *node, f *field, v *value, path string) (any, bool) {
	if v.shape == shapeList || v.shape == shapeMap {
		c.badAt(v.at, path, fmt.Sprintf("must be %s, not %s", describe(n.kind), v.shape), "")
		return nil, false
	}
	if n.kind == kindString {
		return c.text(f, v, path)
	}
	x, hint := parseScalar(n, v)
	if x == nil {
		shown := strconv.Quote(relay.Clip(v.text, clipAt))
		if f != nil && f.secrecy != public {
			shown = "this"
		}
		if f != nil && f.secrecy != public && n.kind == kindText {
			hint = "" // it comes from the type and may repeat the text
		}
		c.badAt(v.at, path, fmt.Sprintf("%s is not %s", shown, describe(n.kind)), hint)
		return nil, false
	}
	return x, true
}

func describe(k kind) string {
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
func parseScalar(n *node, v *value) (any, string) {
	quoted := v.shape == shapeString && v.at.variable == ""
	switch n.kind {
	case kindBool:
		if b, err := strconv.ParseBool(v.text); err == nil && !quoted {
			return b, ""
		}
		return nil, "write true or false, without quotes"
	case kindInt:
		i, err := parseInt(v.text)
		if err == nil && !quoted && !reflect.Zero(n.typ).OverflowInt(i) {
			return i, ""
		}
		return nil, "write digits, without quotes"
	case kindFloat:
		if x, err := strconv.ParseFloat(v.text, 64); err == nil && !quoted && !math.IsInf(x, 0) && !math.IsNaN(x) {
			return x, ""
		}
		return nil, "write digits, without quotes"
	case kindDuration:
		if d, err := time.ParseDuration(v.text); err == nil && (v.shape == shapeString || d == 0) {
			return d, ""
		}
		return nil, "write a number with its unit, such as 500ms, 15s, 5m or 96h"
	case kindSize:
		if s, err := ParseSize(v.text); err == nil {
			return s, ""
		}
		return nil, "write a number of bytes, or one with KiB or MiB, such as 1MiB"
	case kindTime:
		if v.text == "" {
			return time.Time{}, ""
		}
		for _, layout := range []string{time.RFC3339, time.DateOnly} {
			if t, err := time.Parse(layout, v.text); err == nil {
				return t, ""
			}
		}
		return nil, "write 2027-01-31 or 2027-01-31T12:00:00Z"
	}
	if x, ok := reflect.New(n.typ).Interface().(encoding.TextUnmarshaler); ok {
		if err := x.UnmarshalText([]byte(v.text)); err != nil {
			return nil, err.Error()
		}
	}
	return v.text, "" // decode makes the value from it
}

func (c *converter) text(f *field, v *value, path string) (any, bool) {
	if f == nil {
		return v.text, true
	}
	text := v.text
	switch {
	case f.secrecy != public:
		expanded, ok := c.expand(v, path)
		if !ok {
			return nil, false
		}
		text = expanded
	case f.file && text != "":
		return c.filePath(f, v, path)
	case strings.Contains(text, "${"):
		c.warnings = append(c.warnings, c.problem(v.at, path, "${…} stands for itself here: only secrets are filled from the environment",
			"write the value itself"))
	}
	if len(f.enum) > 0 && !slices.Contains(f.enum, text) {
		hint := didYouMean(text, f.enum)
		if hint == "" {
			hint = "choose one of " + strings.Join(f.enum, ", ")
		}
		c.badAt(v.at, path, fmt.Sprintf("%q is not known here", relay.Clip(text, clipAt)), hint)
		return nil, false
	}
	return text, true
}

// clipAt is how much of a value a message repeats, in bytes.
const clipAt = 60
