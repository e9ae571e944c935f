package config

import (
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/hubrelay/hubrelay/internal/yamldoc"
)

// indexPattern are those in lists, in the path of a warning.
var indexPattern = regexp.MustCompile(`\[\d+\]`)

// NewWarnings returns the warnings of a configuration that another before it had not. Where in the file or in a list they stand
// does not count, since something above may have been added.
func NewWarnings(before, after *Config) []yamldoc.Problem {
	type warning struct{ variable, path, text, hint string }
	of := func(w yamldoc.Problem) warning {
		return warning{w.Variable, indexPattern.ReplaceAllString(w.Path, "[]"), w.Message, w.Hint}
	}
	known := make(map[warning]int, len(before.Warnings))
	for _, w := range before.Warnings {
		known[of(w)]++
	}
	return slices.DeleteFunc(slices.Clone(after.Warnings), func(w yamldoc.Problem) bool {
		known[of(w)]--
		return known[of(w)] >= 0
	})
}

// KeyChanges is what another configuration means for the API keys, by their names. What their files hold does not count.
type KeyChanges struct {
	Added, Changed, Removed []string
	Kept                    int
}

// DiffKeys tells what becomes of the keys of a configuration with another behind it.
func DiffKeys(before, after *Config) KeyChanges {
	var c KeyChanges
	former := make(map[string]Key, len(before.Auth.Keys))
	for _, k := range before.Auth.Keys {
		former[k.Name] = k
	}
	for _, k := range after.Auth.Keys {
		was, known := former[k.Name]
		delete(former, k.Name)
		switch {
		case !known:
			c.Added = append(c.Added, k.Name)
		case reflect.DeepEqual(was, k):
			c.Kept++
		default:
			c.Changed = append(c.Changed, k.Name)
		}
	}
	for _, k := range before.Auth.Keys {
		if _, left := former[k.Name]; left {
			c.Removed = append(c.Removed, k.Name)
		}
	}
	return c
}

// RestartRequired names the keys whose values differ between two configurations and which a running daemon does not take
// over: all but the sinks, the sources, auth.keys, admin.tokens and log.level.
func RestartRequired(a, b *Config) []string {
	var list []string
	appendDifferences(&list, "", reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem())
	return list
}

func appendDifferences(list *[]string, path string, a, b reflect.Value) {
	for i := range a.NumField() {
		name, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("koanf"), ",")
		at := path + name
		switch {
		case name == "" || name == "-" || at == "sinks" || at == "sources" || at == "auth.keys" || at == "admin.tokens" || at == "log.level":
		case a.Field(i).Kind() == reflect.Struct && a.Field(i).Type().PkgPath() == reflect.TypeFor[Config]().PkgPath():
			appendDifferences(list, at+".", a.Field(i), b.Field(i))
		case !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()):
			*list = append(*list, at)
		}
	}
}
