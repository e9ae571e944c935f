package setup

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/hubrelay/hubrelay/relay/daemon"
)

// setting is one key of a sink; all its values where it is a list.
type setting struct {
	key    string   // as it was given, such as batch.max
	parts  []string // such as batch and max
	values []string
	list   bool
}

// set gives a key a value, one more where it has some.
func (s *sinkDraft) set(key, value string) {
	if i := slices.IndexFunc(s.settings, func(t setting) bool { return t.key == key }); i >= 0 {
		s.settings[i].values, s.settings[i].list = append(s.settings[i].values, value), true
		return
	}
	parts, list := s.keyPath(key)
	s.settings = append(s.settings, setting{key: key, parts: parts, values: []string{value}, list: list})
}

// keyPath tells of what parts a key is, and whether it takes several values.
func (s *sinkDraft) keyPath(key string) (parts []string, list bool) {
	if parts, list = fieldPath(reflect.TypeFor[daemon.SinkConfig](), key); list {
		return parts, list
	}
	return fieldPath(reflect.TypeOf(s.kind.Config()), key)
}

// checkKey refuses what is no key, and one that holds keys where it has a value, or the other way round.
func (s *sinkDraft) checkKey(key string) error {
	parts, _ := s.keyPath(key)
	if slices.Contains(parts, "") {
		return fmt.Errorf("%q is no key: write one inside of another as batch.max", key)
	}
	for _, t := range s.settings {
		if t.key != key && (startsWith(t.parts, parts) || startsWith(parts, t.parts)) {
			return fmt.Errorf("%s and %s exclude each other: a key has either a value or keys inside", t.key, key)
		}
	}
	return nil
}

func startsWith(list, first []string) bool {
	return len(list) >= len(first) && slices.Equal(list[:len(first)], first)
}

// fieldPath tells where a key such as batch.max leads in a struct of the configuration, and whether several values
// stand there. The keys of a map of texts may hold dots.
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

// fieldOf is the type of the field that a key stands for, nil where there is none.
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

// settingNode is a key with its value, or with the keys below it in the order in which they came.
type settingNode struct {
	key   string
	value *setting
	below []*settingNode
}

// buildTree gathers the settings below the keys that they share.
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

// yamlText is what stands behind the key, on one line.
func (b *settingNode) yamlText() string {
	if b.value != nil {
		return b.value.yamlText()
	}
	entries := make([]string, len(b.below))
	for i, e := range b.below {
		entries[i] = yamlKey(e.key) + ": " + e.yamlText()
	}
	return "{" + strings.Join(entries, ", ") + "}"
}

func (t *setting) yamlText() string {
	if !t.list {
		return quoteYAML(t.values[0])
	}
	quoted := make([]string, len(t.values))
	for i, v := range t.values {
		quoted[i] = quoteYAML(v)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// quoteYAML writes a text for YAML, of which JSON's strings are a part. What is no text to YAML (a number, true)
// stays as it is, since only the setting's type says how it is read.
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

// yamlKey writes a name as a key of YAML.
func yamlKey(name string) string {
	if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") == "" {
		return name
	}
	return quoteYAML(name) // which the check refuses, as it is
}
