package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/hubrelay/hubrelay/internal/yamldoc"
)

// indexPattern matches list indexes in the path of a warning.
var indexPattern = onceRegexp(`\[\d+\]`)

// NewWarnings returns the warnings of after that before did not have. Line numbers and list indexes are ignored,
// because earlier lines may have been added.
func NewWarnings(before, after *Config) []yamldoc.Problem {
	type warning struct{ variable, path, text, hint string }
	identify := func(w yamldoc.Problem) warning {
		return warning{w.Variable, indexPattern().ReplaceAllString(w.Path, "[]"), w.Message, w.Hint}
	}
	known := make(map[warning]int, len(before.Warnings))
	for _, w := range before.Warnings {
		known[identify(w)]++
	}
	return slices.DeleteFunc(slices.Clone(after.Warnings), func(w yamldoc.Problem) bool {
		known[identify(w)]--
		return known[identify(w)] >= 0
	})
}

// Changes lists the names of keys, admin tokens or sinks by change. The content of key files and secret files is ignored.
type Changes struct {
	Added, Changed, Removed []string
	Kept                    int
}

// DiffKeys compares the API keys of two configurations.
func DiffKeys(before, after *Config) Changes {
	return diffNamed(before.Auth.Keys, after.Auth.Keys, func(k Key) string { return k.Name })
}

// DiffAdminTokens compares the admin tokens of two configurations.
func DiffAdminTokens(before, after *Config) Changes {
	return diffNamed(before.Admin.Tokens, after.Admin.Tokens, func(t AdminToken) string { return t.Name })
}

// DiffSinks compares the sinks of two configurations.
func DiffSinks(before, after *Config) Changes {
	type named struct {
		name string
		Sink
	}
	list := func(c *Config) (sinks []named) {
		for _, name := range slices.Sorted(maps.Keys(c.Sinks)) {
			sinks = append(sinks, named{name, c.Sinks[name]})
		}
		return sinks
	}
	return diffNamed(list(before), list(after), func(s named) string { return s.name })
}

func diffNamed[T any](before, after []T, name func(T) string) Changes {
	var c Changes
	former := make(map[string]T, len(before))
	for _, item := range before {
		former[name(item)] = item
	}
	for _, item := range after {
		old, known := former[name(item)]
		delete(former, name(item))
		switch {
		case !known:
			c.Added = append(c.Added, name(item))
		case reflect.DeepEqual(old, item):
			c.Kept++
		default:
			c.Changed = append(c.Changed, name(item))
		}
	}
	for _, item := range before {
		if _, left := former[name(item)]; left {
			c.Removed = append(c.Removed, name(item))
		}
	}
	return c
}

// RestartRequired returns the keys with different values that a running daemon cannot apply: all except sinks,
// sources, auth.keys, admin.tokens and log.level.
func RestartRequired(a, b *Config) []string {
	var list []string
	appendDifferences(&list, "", reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem())
	return list
}

// reloadable are the keys that a running daemon applies.
var reloadable = []string{"sinks", "sources", "auth.keys", "admin.tokens", "log.level"}

func appendDifferences(list *[]string, path string, a, b reflect.Value) {
	for i := range a.NumField() {
		name, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("koanf"), ",")
		key := path + name
		switch {
		case name == "" || name == "-" || slices.Contains(reloadable, key):
		case a.Field(i).Kind() == reflect.Struct && a.Field(i).Type().PkgPath() == reflect.TypeFor[Config]().PkgPath():
			appendDifferences(list, key+".", a.Field(i), b.Field(i))
		case !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()):
			*list = append(*list, key)
		}
	}
}
