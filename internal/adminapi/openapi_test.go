package adminapi_test

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/invopop/jsonschema"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/envelope"
)

var update = flag.Bool("update", false, "generate openapi.yaml and docs/admin-api.md")

// TestGeneratedDocuments checks that the documents describe the operations of this package.
func TestGeneratedDocuments(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{"openapi.yaml": openAPI(t), "../../docs/admin-api.md": reference()} {
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
		} else if string(got) != want {
			t.Errorf("%s does not describe the operations: run 'go test ./internal/adminapi -update'", file)
		}
	}
}

// Two operations with the same name, or with paths that match the same request, would hide each other.
func TestOperations_AreUnique(t *testing.T) {
	t.Parallel()
	all := adminapi.Operations()
	for i, op := range all {
		d := op.Describe()
		for _, other := range all[:i] {
			if o := other.Describe(); o.Name == d.Name || o.Method == d.Method && pathsOverlap(o.Path, d.Path) {
				t.Errorf("%s (%s) and %s (%s) have the same name or overlap", o.Name, o.Path, d.Name, d.Path)
			}
		}
	}
}

// pathsOverlap reports whether a path matches both patterns.
func pathsOverlap(a, b string) bool {
	one, other := strings.Split(a, "/"), strings.Split(b, "/")
	for i := range min(len(one), len(other)) {
		if one[i] != other[i] && !strings.HasPrefix(one[i], "{") && !strings.HasPrefix(other[i], "{") {
			return false
		}
	}
	return len(one) == len(other)
}

// reference returns the list of operations for people.
func reference() string {
	var b strings.Builder
	b.WriteString("# Admin API\n\n" +
		"The admin listener serves these operations. [Operating a running relay](admin.md) describes how to reach it, and who\n" +
		"may. `GET /api/openapi.yaml` returns the requests and responses in OpenAPI 3.1. A role includes the roles before it:\n" +
		"`viewer`, `operator`, `admin`.\n\n" +
		"A response is `{\"data\": …}`, and for a page of a list also has `next`: send it as `after` to get the next page. Errors\n" +
		"are as in the public API: `{\"error\": {\"status\": 404, \"code\": \"404.sink\", \"title\": \"…\", \"detail\": \"…\"}, \"data\": null}`.\n" +
		"Operations that change something are recorded in the audit log with their name.\n\n" +
		"| operation | request | role | |\n|---|---|---|---|\n")
	for _, op := range adminapi.Operations() {
		d := op.Describe()
		fmt.Fprintf(&b, "| `%s` | `%s %s` | `%s` | %s |\n", d.Name, d.Method, d.Path, d.Role, d.Summary)
	}
	return b.String()
}

type (
	document struct {
		OpenAPI    string                           `json:"openapi"`
		Info       map[string]string                `json:"info"`
		Security   []map[string][]string            `json:"security"`
		Tags       []map[string]string              `json:"tags"`
		Paths      map[string]map[string]*operation `json:"paths"`
		Components map[string]any                   `json:"components"`
	}
	operation struct {
		Name       string         `json:"operationId"`
		Tags       []string       `json:"tags"`
		Summary    string         `json:"summary"`
		Role       adminapi.Role  `json:"x-role"`
		Parameters []parameter    `json:"parameters,omitempty"`
		Body       *content       `json:"requestBody,omitempty"`
		Responses  map[string]any `json:"responses"`
	}
	parameter struct {
		Name        string `json:"name"`
		In          string `json:"in"`
		Required    bool   `json:"required,omitempty"`
		Description string `json:"description,omitempty"`
		Schema      any    `json:"schema"`
	}
	content struct {
		Description string         `json:"description,omitempty"`
		Content     map[string]any `json:"content"`
	}
)

func mediaType(schema any) map[string]any { return map[string]any{"schema": schema} }

// openAPI generates the description of all operations.
func openAPI(t *testing.T) string {
	t.Helper()
	s := newSchemas(t)
	doc := document{
		OpenAPI: "3.1.0",
		Info: map[string]string{
			"title": "hubrelay admin API", "version": "1",
			"description": "Operations for the people who run a relay. Callers on the unix socket have the role admin. " +
				"Over TCP, the bearer token decides; x-role is the role that an operation needs.",
		},
		Security: []map[string][]string{{"token": {}}, {}},
		Paths:    make(map[string]map[string]*operation),
	}
	var tags []string
	for _, op := range adminapi.Operations() {
		d := op.Describe()
		tag, _, _ := strings.Cut(d.Name, ".")
		if !slices.Contains(tags, tag) {
			tags = append(tags, tag)
			doc.Tags = append(doc.Tags, map[string]string{"name": tag})
		}
		if doc.Paths[d.Path] == nil {
			doc.Paths[d.Path] = make(map[string]*operation)
		}
		doc.Paths[d.Path][strings.ToLower(d.Method)] = s.describe(op, tag)
	}
	failure := map[string]any{
		"type": "object", "required": []string{"error", "data"},
		"properties": map[string]any{
			"error": s.schemaOf(reflect.TypeFor[envelope.Error]()), "data": map[string]string{"type": "null"},
		},
	}
	doc.Components = map[string]any{
		"schemas": s.definitions,
		"responses": map[string]any{
			"Error": content{"The operation failed", map[string]any{"application/json": mediaType(failure)}},
		},
		"securitySchemes": map[string]any{"token": map[string]string{
			"type": "http", "scheme": "bearer", "description": "A token of admin.tokens",
		}},
	}
	text, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	text = []byte(strings.ReplaceAll(string(text), "#/$defs/", "#/components/schemas/"))
	if text, err = yaml.JSONToYAML(text); err != nil {
		t.Fatal(err)
	}
	return "# Generated by 'go test ./internal/adminapi -update'.\n" + string(text)
}

// schemas are the schemas of all types.
type schemas struct {
	reflector   *jsonschema.Reflector
	definitions map[string]*jsonschema.Schema
}

func newSchemas(t *testing.T) *schemas {
	t.Helper()
	r := &jsonschema.Reflector{Anonymous: true, AllowAdditionalProperties: true, Mapper: func(of reflect.Type) *jsonschema.Schema {
		if of != reflect.TypeFor[adminapi.SinkState]() {
			return nil
		}
		states := &jsonschema.Schema{Type: "string"}
		for _, state := range adminapi.SinkStates() {
			states.Enum = append(states.Enum, state)
		}
		return states
	}}
	for _, dir := range []string{"internal/adminapi", "internal/envelope", "relay"} {
		if err := r.AddGoComments("github.com/hubrelay/hubrelay/"+dir, "../../"+dir); err != nil {
			t.Fatal(err)
		}
	}
	link := regexp.MustCompile(`\[\*?([\w.]+)\]`)
	for name, comment := range r.CommentMap {
		r.CommentMap[name] = link.ReplaceAllString(strings.ReplaceAll(comment, "\n", " "), "$1")
	}
	renameFields(r.CommentMap)
	return &schemas{reflector: r, definitions: make(map[string]*jsonschema.Schema)}
}

// renameFields replaces the names of fields in the comments of their type by those in JSON.
func renameFields(comments map[string]string) {
	structs := make(map[reflect.Type]bool)
	for _, op := range adminapi.Operations() {
		request, response := op.Types()
		addStructs(structs, request)
		addStructs(structs, response)
	}
	for of := range structs {
		names := make(map[string]string)
		for _, field := range reflect.VisibleFields(of) {
			if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" && name != "-" {
				names[field.Name] = "`" + name + "`"
			}
		}
		path := of.PkgPath() + "." + of.Name()
		comments[path] = replaceNames(comments[path], names)
		for field := range names {
			comments[path+"."+field] = replaceNames(comments[path+"."+field], names)
		}
	}
}

// addStructs adds the structs that a type consists of.
func addStructs(structs map[reflect.Type]bool, of reflect.Type) {
	switch of.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		addStructs(structs, of.Elem())
	case reflect.Struct:
		if structs[of] {
			return
		}
		structs[of] = true
		for _, field := range reflect.VisibleFields(of) {
			addStructs(structs, field.Type)
		}
	}
}

var capitalized = regexp.MustCompile(`\b[A-Z]\w+`)

func replaceNames(comment string, names map[string]string) string {
	isFirst := true
	return capitalized.ReplaceAllStringFunc(comment, func(name string) string {
		// Only at the beginning, these are names of fields.
		isWord := !isFirst && (name == "ID" || name == "IDs" || name == "URL")
		if isFirst = false; isWord {
			return name
		}
		return cmp.Or(names[name], name)
	})
}

// schemaOf returns a schema and adds the definitions that it refers to.
func (s *schemas) schemaOf(of reflect.Type) *jsonschema.Schema {
	schema := s.reflector.ReflectFromType(of)
	for name, definition := range schema.Definitions {
		s.definitions[name] = definition
	}
	schema.Version, schema.Definitions = "", nil
	return schema
}

func (s *schemas) describe(op adminapi.AnyOperation, tag string) *operation {
	d := op.Describe()
	request, response := op.Types()
	o := &operation{Name: d.Name, Tags: []string{tag}, Summary: d.Summary, Role: d.Role, Responses: map[string]any{
		"200":     content{"Success", map[string]any{"application/json": mediaType(s.envelope(response))}},
		"default": map[string]string{"$ref": "#/components/responses/Error"},
	}}
	for _, name := range d.ParameterNames() {
		o.Parameters = append(o.Parameters, parameter{
			Name: name, In: "path", Required: true, Schema: map[string]string{"type": "string"},
		})
	}
	switch {
	case request == reflect.TypeFor[adminapi.Empty]():
	case request == reflect.TypeFor[adminapi.InventoryFile]():
		file := mediaType(map[string]string{"type": "object"})
		o.Body = &content{Content: map[string]any{"application/yaml": file, "application/json": file}}
	case d.Method == "GET":
		r := *s.reflector
		r.ExpandedStruct = true
		schema := r.ReflectFromType(request)
		for p := schema.Properties.Oldest(); p != nil; p = p.Next() {
			description := p.Value.Description
			p.Value.Description = ""
			o.Parameters = append(o.Parameters, parameter{Name: p.Key, In: "query", Description: description, Schema: p.Value})
		}
	default:
		o.Body = &content{Content: map[string]any{"application/json": mediaType(s.schemaOf(request))}}
	}
	return o
}

// envelope returns the schema of the body of a response.
func (s *schemas) envelope(response reflect.Type) any {
	properties, required := map[string]any{}, []string{"data"}
	if response.Implements(reflect.TypeFor[adminapi.WholeBody]()) {
		list, _ := response.FieldByName("Data")
		properties["data"] = s.schemaOf(list.Type)
		properties["next"] = map[string]string{
			"type": "string", "description": "The value of after for the next page. It is empty on the last page.",
		}
		r := *s.reflector
		r.ExpandedStruct = true
		page := r.ReflectFromType(response)
		for p := page.Properties.Oldest(); p != nil; p = p.Next() {
			if properties[p.Key] == nil {
				properties[p.Key] = p.Value
			}
		}
		required = page.Required
	} else {
		properties["data"] = s.schemaOf(response)
	}
	return map[string]any{"type": "object", "required": required, "properties": properties}
}
