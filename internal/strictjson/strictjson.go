// Package strictjson decodes JSON into structs and rejects unknown keys. Its errors are for the person who wrote the JSON.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/suggest"
	"github.com/hubrelay/hubrelay/relay"
)

// SyntaxError reports text that is not one JSON value.
type SyntaxError struct{ Problem string }

func (e *SyntaxError) Error() string { return e.Problem }

// Decode decodes one JSON value into the struct that into points to. It returns a [*SyntaxError] or, if one key is wrong, a
// [*relay.FieldError] with the path of the key.
func Decode(text []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return newError(err, text, into)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return &SyntaxError{"there is more text after the JSON value"}
	}
	return nil
}

// newError converts an error of encoding/json.
func newError(err error, text []byte, into any) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return &SyntaxError{fmt.Sprintf("invalid JSON at byte %d: %v", syntax.Offset, err)}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &SyntaxError{"the JSON is incomplete"}
	}
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		value := strings.NewReplacer("array", "list", "object", "map", "bool", "boolean").Replace(wrong.Value)
		problem := fmt.Sprintf("must be a %s, not a %s", typeName(wrong.Type), value)
		if wrong.Field == "" {
			return errors.New("the JSON " + problem)
		}
		return &relay.FieldError{Field: wrong.Field, Problem: problem}
	}
	var invalidTime *time.ParseError
	if errors.As(err, &invalidTime) {
		return errors.New(strconv.Quote(relay.Truncate(strings.Trim(invalidTime.Value, `"`), 60)) + " is not a time such as 2027-01-31T12:00:00Z")
	}
	// encoding/json has no type for this error.
	quoted, isUnknown := strings.CutPrefix(err.Error(), "json: unknown field ")
	key, unquoteErr := strconv.Unquote(quoted)
	if !isUnknown || unquoteErr != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	keys := listKeys(reflect.TypeOf(into).Elem())
	hint := "no keys are allowed"
	if nearest := suggest.ClosestName(key, keys); nearest != "" {
		hint = "did you mean " + nearest + "?"
	} else if len(keys) > 0 {
		hint = "the keys are " + strings.Join(keys, ", ")
	}
	return &relay.FieldError{Field: relay.Truncate(findKey(text, key), 200), Problem: "is an unknown key; " + hint}
}

// findKey returns the path of the first key with this name.
func findKey(text []byte, key string) string {
	var walk func(v any, path string) string
	walk = func(v any, path string) string {
		switch v := v.(type) {
		case map[string]any:
			if _, ok := v[key]; ok {
				return path + key
			}
			for _, name := range slices.Sorted(maps.Keys(v)) {
				if found := walk(v[name], path+name+"."); found != "" {
					return found
				}
			}
		case []any:
			for i, item := range v {
				if found := walk(item, path+strconv.Itoa(i)+"."); found != "" {
					return found
				}
			}
		}
		return ""
	}
	var all any
	if err := json.Unmarshal(text, &all); err != nil {
		return key
	}
	return walk(all, "")
}

func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		return "list"
	case reflect.Map, reflect.Struct:
		return "map"
	case reflect.Bool:
		return "boolean"
	case reflect.String:
		return "string"
	}
	return "number"
}

// listKeys returns the keys of a struct and of the structs in it.
func listKeys(t reflect.Type) []string {
	seen, keys := map[reflect.Type]bool{}, []string{}
	var walk func(reflect.Type)
	walk = func(t reflect.Type) {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct || seen[t] {
			return
		}
		seen[t] = true
		for i := range t.NumField() {
			f := t.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if !f.IsExported() && !f.Anonymous || name == "-" {
				continue
			}
			if name == "" && !f.Anonymous {
				name = f.Name
			}
			if name != "" {
				keys = append(keys, name)
			}
			walk(f.Type)
		}
	}
	walk(t)
	slices.Sort(keys)
	return slices.Compact(keys)
}
