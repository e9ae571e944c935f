package setup

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/hubrelay/hubrelay/relay/daemon"
)

// setting is a key of a sink and its values.
type setting struct {
	key    string   // as the user wrote it, such as batch.max
	parts  []string // such as "batch" and "max"
	values []string
	list   bool
}

// set appends a value to a key. Two values make a list.
func (s *sinkDraft) set(key, value string) {
	if i := slices.IndexFunc(s.settings, func(t setting) bool { return t.key == key }); i >= 0 {
		s.settings[i].values, s.settings[i].list = append(s.settings[i].values, value), true
		return
	}
	parts, list := s.keyPath(key)
	s.settings = append(s.settings, setting{key: key, parts: parts, values: []string{value}, list: list})
}

// keyPath returns the parts of a key, and whether its value is a list.
func (s *sinkDraft) keyPath(key string) (parts []string, list bool) {
	if parts, list = fieldPath(reflect.TypeFor[daemon.SinkConfig](), key); list {
		return parts, list
	}
	return fieldPath(reflect.TypeOf(s.kind.Config()), key)
}

// checkKey rejects an invalid key, and a key that has both a value and nested keys.
func (s *sinkDraft) checkKey(key string) error {
	parts, _ := s.keyPath(key)
	if slices.Contains(parts, "") {
		return fmt.Errorf("%q is not a key: write a nested key as batch.max", key)
	}
	for _, t := range s.settings {
		if t.key != key && (hasPrefix(t.parts, parts) || hasPrefix(parts, t.parts)) {
			return fmt.Errorf("%s and %s exclude each other: a key has either a value or nested keys", t.key, key)
		}
	}
	return nil
}

func hasPrefix(list, prefix []string) bool {
	return len(list) >= len(prefix) && slices.Equal(list[:len(prefix)], prefix)
}

// fieldPath returns the parts of a key in a configuration struct, and whether the field is a list. Keys of a map of
// strings can contain dots.
func fieldPath(t reflect.Type, key string) (parts []string, list bool) {
	for {
		for t != nil && t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t != nil && t.Kind() == reflect.Map && t.Elem().Kind() == reflect.String {
			return append(parts, key), false
		}
		first, rest, more := strings.Cut(key, ".")
		parts, t = append(parts, first), fieldOf(t, first)
		if !more {
			return parts, t != nil && t.Kind() == reflect.Slice
		}
		key = rest
	}
}

// fieldOf returns the type of the field for a key, or nil.
func fieldOf(t reflect.Type, key string) reflect.Type {
	if t == nil || t.Kind() != reflect.Struct {
		return nil
	}
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("koanf"), ","); name == key {
			return t.Field(i).Type
		}
	}
	return nil
}

// settingNode is a key with either a value or nested keys in their original order.
type settingNode struct {
	key   string
	value *setting
	below []*settingNode
}

// buildTree groups settings by their common parents.
func buildTree(settings []setting) []*settingNode {
	root := &settingNode{}
	for i := range settings {
		at := root
		for _, part := range settings[i].parts {
			n := slices.IndexFunc(at.below, func(b *settingNode) bool { return b.key == part })
			if n < 0 {
				n = len(at.below)
				at.below = append(at.below, &settingNode{key: part})
			}
			at = at.below[n]
		}
		at.value = &settings[i]
	}
	return root.below
}

// yamlText returns the value of the node on one line.
func (s *settingNode) yamlText() string {
	if s.value != nil {
		return s.value.yamlText()
	}
	entries := make([]string, len(s.below))
	for i, e := range s.below {
		entries[i] = yamlKey(e.key) + ": " + e.yamlText()
	}
	return "{" + strings.Join(entries, ", ") + "}"
}

func (s *setting) yamlText() string {
	if !s.list {
		return quoteYAML(s.values[0])
	}
	quoted := make([]string, len(s.values))
	for i, v := range s.values {
		quoted[i] = quoteYAML(v)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// quoteYAML returns text as a YAML value. JSON strings are valid YAML. Numbers, true and false are not quoted,
// because the type of the setting decides how they are parsed.
func quoteYAML(text string) string {
	var scalar any
	if json.Unmarshal([]byte(text), &scalar) == nil {
		switch scalar.(type) {
		case float64, bool:
			return text
		}
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // never fails for a string
	return strings.TrimSuffix(b.String(), "\n")
}

// yamlKey returns name as a YAML key.
func yamlKey(name string) string {
	if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") == "" {
		return name
	}
	return quoteYAML(name) // the check rejects it
}
