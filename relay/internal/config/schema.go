package config

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// kind is the expected form of a value in YAML.
type kind int

const (
	kindObject kind = iota // a map with known keys
	kindMap                // a map with free keys
	kindSinks              // the map of sinks, whose keys depend on the type
	kindNamed              // a map of named objects with the same schema
	kindList
	kindString
	kindBool
	kindInt
	kindFloat
	kindDuration
	kindSize
	kindTime
	kindText // parsed by encoding.TextUnmarshaler
	kindAny  // any YAML value
)

// node is the schema of a value.
type node struct {
	kind   kind
	typ    reflect.Type
	fields []*field         // kindObject: in struct order; kindSinks: the shared keys
	elem   *node            // kindMap, kindNamed, kindList
	types  map[string]*node // kindSinks: all keys of each type
	// anyType is set for a sink of unknown type, which accepts the keys of all types.
	anyType bool
}

// visibility controls how much of a string is printed.
type visibility int

const (
	public visibility = iota
	secret
	secretURL
)

// field is one key of an object.
type field struct {
	name         string
	doc          string
	enum         []string
	secrecy      visibility
	notSecret    bool // regardless of its name
	file         bool // names existing files
	index        []int
	defaultValue reflect.Value
	node         *node
}

func (n *node) field(name string) *field {
	for _, f := range n.fields {
		if f.name == name {
			return f
		}
	}
	return nil
}

func (n *node) names() []string {
	names := make([]string, len(n.fields))
	for i, f := range n.fields {
		names[i] = f.name
	}
	return names
}

// newSchema derives the schema of Config with the given kinds.
func newSchema(kinds Kinds) (*node, error) {
	def := defaultConfig()
	if kinds.Driver != nil {
		def.Migration.Driver.Settings = kinds.Driver.Config()
	}
	root, err := objectNode(reflect.ValueOf(def))
	if err != nil {
		return nil, err
	}
	common, err := objectNode(reflect.ValueOf(defaultSink()))
	if err != nil {
		return nil, err
	}
	sinks := root.field("sinks").node
	sinks.kind, sinks.fields, sinks.types = kindSinks, common.fields, make(map[string]*node, len(kinds.Sinks))
	for _, k := range kinds.Sinks {
		own, err := objectNode(reflect.Indirect(reflect.ValueOf(k.Config())))
		if err != nil {
			return nil, fmt.Errorf("schema of sink type %s: %w", k.Type, err)
		}
		for _, f := range own.fields {
			if common.field(f.name) != nil {
				return nil, fmt.Errorf("schema of sink type %s: key %s is already a key of all sinks", k.Type, f.name)
			}
		}
		fields := slices.Concat(common.fields, own.fields)
		for i, f := range fields {
			if f.name == "rate" {
				mine := *f
				mine.defaultValue = reflect.ValueOf(k.Rate)
				fields[i] = &mine
			}
		}
		sinks.types[k.Type] = &node{kind: kindObject, fields: fields}
	}
	for _, f := range sinks.fields {
		if f.name == "type" {
			f.enum = sinks.sinkTypes()
		}
	}
	return root, nil
}

// driverSettings returns the struct that has the keys of v. For a Driver this is its Settings.
func driverSettings(v reflect.Value) reflect.Value {
	if d, ok := v.Interface().(Driver); ok && d.Settings != nil {
		return reflect.Indirect(reflect.ValueOf(d.Settings))
	}
	return v
}

// sinkTypes returns the known types of sinks in alphabetical order.
func (n *node) sinkTypes() []string {
	types := make([]string, 0, len(n.types))
	for t := range n.types {
		types = append(types, t)
	}
	slices.Sort(types)
	return types
}

func objectNode(def reflect.Value) (*node, error) {
	if def.Kind() != reflect.Struct {
		return nil, fmt.Errorf("%s is not a struct", def.Type())
	}
	n := &node{kind: kindObject, typ: def.Type()}
	for i := range def.NumField() {
		sf := def.Type().Field(i)
		tag, options, _ := strings.Cut(sf.Tag.Get("koanf"), ",")
		switch {
		case !sf.IsExported() || tag == "-":
			continue
		case options == "squash":
			inner, err := objectNode(def.Field(i))
			if err != nil {
				return nil, err
			}
			for _, f := range inner.fields {
				f.index = append([]int{i}, f.index...)
			}
			n.fields = append(n.fields, inner.fields...)
			continue
		case tag == "":
			return nil, fmt.Errorf("field %s of %s has no koanf tag", sf.Name, def.Type())
		}
		f, err := newField(def.Type(), tag, sf, def.Field(i))
		if err != nil {
			return nil, err
		}
		n.fields = append(n.fields, f)
	}
	classifySecrets(n)
	return n, nil
}

func newField(owner reflect.Type, name string, sf reflect.StructField, def reflect.Value) (*field, error) {
	f := &field{name: name, doc: describe(owner, name, sf.Tag.Get("doc")), index: []int{sf.Index[0]}, defaultValue: def}
	if enum := sf.Tag.Get("enum"); enum != "" {
		f.enum = strings.Split(enum, ",")
	}
	switch sf.Tag.Get("secret") {
	case "":
	case "false":
		f.notSecret = true
	case "url":
		f.secrecy = secretURL
	default:
		f.secrecy = secret
	}
	var err error
	if f.node, err = typeNode(def); err != nil {
		return nil, fmt.Errorf("key %s: %w", name, err)
	}
	f.file = isText(f.node) && (strings.HasSuffix(name, "_file") || strings.HasSuffix(name, "_files"))
	return f, nil
}

func isText(n *node) bool {
	return n.kind == kindString || n.kind == kindList && n.elem.kind == kindString
}

// classifySecrets marks strings as secrets based on the other keys of the object.
func classifySecrets(n *node) {
	for _, f := range n.fields {
		switch {
		case f.secrecy != public || f.notSecret || isTemplate(f.name) || !isText(f.node):
		case n.field(f.name+"_file") != nil, n.field(strings.TrimSuffix(f.name, "s")+"_files") != nil:
			f.secrecy = secret
		case f.name == "url":
			f.secrecy = secretURL
		}
	}
}

func typeNode(def reflect.Value) (*node, error) {
	t := def.Type()
	n := &node{typ: t}
	switch {
	case t == reflect.TypeFor[time.Duration]():
		n.kind = kindDuration
		return n, nil
	case t == reflect.TypeFor[Size]():
		n.kind = kindSize
		return n, nil
	case t == reflect.TypeFor[time.Time]():
		n.kind = kindTime
		return n, nil
	case reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		n.kind = kindText
		return n, nil
	}
	var err error
	switch t.Kind() {
	case reflect.String:
		n.kind = kindString
	case reflect.Bool:
		n.kind = kindBool
	case reflect.Int, reflect.Int64, reflect.Int32:
		n.kind = kindInt
	case reflect.Float64:
		n.kind = kindFloat
	case reflect.Interface:
		n.kind = kindAny
	case reflect.Struct:
		return objectNode(driverSettings(def))
	case reflect.Slice:
		n.kind = kindList
		n.elem, err = typeNode(reflect.Zero(t.Elem()))
	case reflect.Map:
		n.kind = kindMap
		if n.elem, err = typeNode(reflect.Zero(t.Elem())); err == nil && n.elem.kind == kindObject {
			n.kind = kindNamed
		}
	default:
		err = fmt.Errorf("unsupported type %s", t)
	}
	return n, err
}

func isNil(v reflect.Value) bool {
	return (v.Kind() == reflect.Slice || v.Kind() == reflect.Map || v.Kind() == reflect.Interface) && v.IsNil()
}

// toLayer converts a struct into the nested map that koanf merges. Nil lists and maps are omitted.
func (n *node) toLayer(v reflect.Value) any {
	switch n.kind {
	case kindObject:
		v = driverSettings(v)
		m := make(map[string]any, len(n.fields))
		for _, f := range n.fields {
			fv := v.FieldByIndex(f.index)
			if isNil(fv) {
				continue
			}
			m[f.name] = f.node.toLayer(fv)
		}
		return m
	case kindList:
		list := make([]any, v.Len())
		for i := range list {
			list[i] = n.elem.toLayer(v.Index(i))
		}
		return list
	case kindText:
		return formatScalar(v)
	default:
		return v.Interface()
	}
}

// fieldLayer returns the defaults of the fields as a layer for koanf.
func fieldLayer(fields []*field) map[string]any {
	m := make(map[string]any, len(fields))
	for _, f := range fields {
		if isNil(f.defaultValue) {
			continue
		}
		m[f.name] = f.node.toLayer(f.defaultValue)
	}
	return m
}

// fromLayer sets v to a value that the schema has converted, or that toLayer has returned. Keys that are missing keep their
// value. An error is a mistake in this package.
func (n *node) fromLayer(x any, v reflect.Value) error {
	given := reflect.ValueOf(x)
	switch {
	case x == nil || n.kind == kindSinks: // an invalid item of a list, which was reported; loadSinks fills the sinks
		return nil
	case n.kind == kindObject:
		m, ok := x.(map[string]any)
		if !ok {
			return fmt.Errorf("%s cannot hold %s", v.Type(), given.Type())
		}
		return setFields(n.fields, m, driverSettings(v))
	case (n.kind == kindNamed || n.kind == kindMap) && given.Kind() == reflect.Map:
		return n.setMap(given, v)
	case n.kind == kindList && given.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), given.Len(), given.Len()))
		for i := range given.Len() {
			if err := n.elem.fromLayer(given.Index(i).Interface(), v.Index(i)); err != nil {
				return fmt.Errorf("[%d]: %w", i, err)
			}
		}
		return nil
	}
	if text, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok && n.kind == kindText && given.Kind() == reflect.String {
		return text.UnmarshalText([]byte(given.String()))
	}
	return setScalar(given, v)
}

func (n *node) setMap(given, v reflect.Value) error {
	v.Set(reflect.MakeMapWithSize(v.Type(), given.Len()))
	for _, key := range given.MapKeys() {
		item := reflect.New(v.Type().Elem()).Elem()
		if err := n.elem.fromLayer(given.MapIndex(key).Interface(), item); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		v.SetMapIndex(key.Convert(v.Type().Key()), item)
	}
	return nil
}

func setScalar(given, v reflect.Value) error {
	switch {
	case given.Type().AssignableTo(v.Type()):
		v.Set(given)
	case given.CanInt() && v.CanInt() && !v.OverflowInt(given.Int()):
		v.SetInt(given.Int())
	case given.Kind() == v.Kind() && given.CanConvert(v.Type()):
		v.Set(given.Convert(v.Type()))
	default:
		return fmt.Errorf("%s cannot hold %s", v.Type(), given.Type())
	}
	return nil
}

// setFields sets the fields of the struct v that have a value in m.
func setFields(fields []*field, m map[string]any, v reflect.Value) error {
	for _, f := range fields {
		x, found := m[f.name]
		if !found {
			continue
		}
		if err := f.node.fromLayer(x, v.FieldByIndex(f.index)); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}
