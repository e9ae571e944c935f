package config

import (
	"reflect"
	"strings"
)

// Differences names the keys whose values differ between two configurations and which a running daemon does not take
// over: all but the sinks, the sources, auth.keys and log.level.
func Differences(a, b *Config) []string {
	var list []string
	differences(&list, "", reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem())
	return list
}

func differences(list *[]string, path string, a, b reflect.Value) {
	for i := range a.NumField() {
		name, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("koanf"), ",")
		at := path + name
		switch {
		case name == "" || name == "-" || at == "sinks" || at == "sources" || at == "auth.keys" || at == "log.level":
		case a.Field(i).Kind() == reflect.Struct && a.Field(i).Type().PkgPath() == reflect.TypeFor[Config]().PkgPath():
			differences(list, at+".", a.Field(i), b.Field(i))
		case !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()):
			*list = append(*list, at)
		}
	}
}
