package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
)

// JSONSchema returns the JSON Schema (draft 2020-12) of the configuration file, for editors and CI. The result is
// deterministic.
func JSONSchema(kinds Kinds) ([]byte, error) {
	root, err := newSchema(kinds)
	if err != nil {
		return nil, err
	}
	s := objectSchema(root.fields)
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "hubrelay configuration"
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(s); err != nil {
		return nil, fmt.Errorf("write the JSON Schema: %w", err)
	}
	return b.Bytes(), nil
}

type schemaObject = map[string]any

// orNull also allows null, because a key without a value counts as missing.
func orNull(s schemaObject) schemaObject {
	if t, ok := s["type"].(string); ok {
		s["type"] = []string{t, "null"}
	}
	return s
}

func objectSchema(fields []*field) schemaObject {
	properties := make(schemaObject, len(fields))
	for _, f := range fields {
		properties[f.name] = fieldSchema(f)
	}
	return schemaObject{"type": "object", "properties": properties, "additionalProperties": false}
}

func fieldSchema(f *field) schemaObject {
	s := nodeSchema(f.node)
	if f.doc != "" {
		s["description"] = f.doc
	}
	if items, ok := s["items"].(schemaObject); ok && len(f.enum) > 0 {
		items["enum"] = f.enum
	} else if slices.Contains(f.enum, "true") { // YAML reads it as a boolean
		s["type"], s["enum"] = []string{"string", "boolean"}, booleansIn(f.enum)
		return s
	} else if len(f.enum) > 0 {
		s["enum"] = f.enum
		return s
	}
	switch f.node.kind {
	case kindObject, kindSinks, kindNamed, kindAny, kindTime:
	default:
		if (f.defaultValue.Kind() != reflect.Slice && f.defaultValue.Kind() != reflect.Map) || !f.defaultValue.IsNil() {
			s["default"] = defaultJSON(f.node, f.defaultValue)
		} else if f.node.kind == kindList {
			s["default"] = []any{}
		}
	}
	return orNull(s)
}

// booleansIn returns the values with true and false as booleans.
func booleansIn(values []string) []any {
	list := make([]any, len(values))
	for i, value := range values {
		list[i] = value
		if b, err := strconv.ParseBool(value); err == nil {
			list[i] = b
		}
	}
	return list
}

func defaultJSON(n *node, v reflect.Value) any {
	switch n.kind {
	case kindList:
		list := make([]any, v.Len())
		for i := range list {
			list[i] = defaultJSON(n.elem, v.Index(i))
		}
		return list
	case kindDuration, kindSize, kindText:
		return formatScalar(v)
	default:
		return v.Interface()
	}
}

func nodeSchema(n *node) schemaObject {
	switch n.kind {
	case kindObject:
		return objectSchema(n.fields)
	case kindSinks:
		return sinksSchema(n)
	case kindNamed:
		return schemaObject{
			"type": "object", "propertyNames": schemaObject{
				"pattern": sinkName().String(),
			}, "additionalProperties": objectSchema(n.elem.fields),
		}
	case kindMap:
		return schemaObject{"type": "object", "additionalProperties": nodeSchema(n.elem)}
	case kindList:
		return schemaObject{"type": "array", "items": nodeSchema(n.elem)}
	case kindBool:
		return schemaObject{"type": "boolean"}
	case kindInt:
		return schemaObject{"type": "integer"}
	case kindFloat:
		return schemaObject{"type": "number"}
	case kindDuration:
		return schemaObject{
			"type": "string", "pattern": `^(0|[0-9]+w|([0-9]+w)?[0-9]+d|([0-9]+w)?([0-9]+d)?([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$`, "examples": []string{"15s"},
		}
	case kindSize:
		return schemaObject{
			"type": []string{"string", "integer", "null"}, "pattern": `^[0-9]+ *([KMG]iB|[kKMG]B|B)?$`,
			"examples": []string{"1MiB"},
		}
	case kindAny:
		return schemaObject{}
	default:
		return schemaObject{"type": "string"}
	}
}

// sinksSchema has one alternative per type.
func sinksSchema(n *node) schemaObject {
	var kinds []any
	for _, t := range n.sinkTypes() {
		s := objectSchema(n.types[t].fields)
		properties, _ := s["properties"].(schemaObject)
		properties["type"] = schemaObject{"const": t, "description": n.fields[0].doc}
		s["required"] = []string{"type"}
		s["title"] = t
		kinds = append(kinds, s)
	}
	s := schemaObject{"type": "object", "propertyNames": schemaObject{"pattern": sinkName().String()}}
	if len(kinds) > 0 {
		s["additionalProperties"] = schemaObject{"oneOf": kinds}
	}
	return s
}
