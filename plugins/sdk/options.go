package sdk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

// DefaultConcurrency is how many deliveries a plugin takes at once unless [Concurrency] says otherwise. The sink's own
// `concurrency` is the lower bound of the two in practice.
const DefaultConcurrency = 1024

// Option changes what a plugin does besides handling.
type Option func(*options)

type options struct {
	config      any
	concurrency int
	version     string
	start, stop func(context.Context) error
	validate    func(context.Context) error
	explain     func(relay.Delivery) (relay.Explanation, error)
}

func newOptions(list []Option) *options {
	o := &options{concurrency: DefaultConcurrency}
	for _, option := range list {
		option(o)
	}
	return o
}

// Config has the sink's `config` decoded into what into points to, before the first notification is handled. What the
// struct holds already is the default.
func Config(into any) Option { return func(o *options) { o.config = into } }

// Concurrency bounds how many deliveries are handled at once, from 1 to 65535.
func Concurrency(n int) Option { return func(o *options) { o.concurrency = n } }

// Version names the plugin's own version, for the daemon's log.
func Version(v string) Option { return func(o *options) { o.version = v } }

// OnStart has start called once, after the configuration was read and before anything is handled. Its error is shown to
// the operator and ends the start; the daemon tries again later.
func OnStart(start func(context.Context) error) Option {
	return func(o *options) { o.start = start }
}

// OnStop has stop called once, after the last delivery was handled. Its context ends two seconds
// after the daemon has asked the plugin to end.
func OnStop(stop func(context.Context) error) Option { return func(o *options) { o.stop = stop } }

// OnValidate has validate called, in place of all else, in a process that is started to find mistakes in a configuration:
// by `hubrelay config check`, and by a daemon before it takes over a changed file. It is called once the configuration was read
// and found good so far, and adds what OnStart would find, such as a file that is missing; it must dial nobody and change
// nothing. Of its errors, which [errors.Join] may join, a *relay.FieldError names the key.
func OnValidate(validate func(context.Context) error) Option {
	return func(o *options) { o.validate = validate }
}

// Explain has explain called, in place of all else, in a process that is started to show what a delivery would become, by
// `hubrelay sinks explain`. It is called once the configuration was read, without OnStart, and must send nothing, dial nobody,
// and show no secret. Without it the operator sees what the plugin is given. It is for sinks.
func Explain(explain func(relay.Delivery) (relay.Explanation, error)) Option {
	return func(o *options) { o.explain = explain }
}

func (o *options) check() error {
	if o.concurrency < 1 || o.concurrency > maxConcurrency {
		return fmt.Errorf("sdk.Concurrency(%d) is not from 1 to %d", o.concurrency, maxConcurrency)
	}
	if o.config == nil {
		return nil
	}
	if v := reflect.ValueOf(o.config); v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return fmt.Errorf("sdk.Config takes a pointer to a struct, not a %T", o.config)
	}
	return nil
}

// decode fills the author's struct. Its errors are for the operator, those of one key are a [relay.FieldError].
func (o *options) decode(text []byte) error {
	into := o.config
	if into == nil {
		into = &struct{}{}
	}
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte("{}")
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return configError(err, text, into)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is something behind the object")
	}
	if v, ok := into.(interface{ Validate() error }); ok {
		return v.Validate()
	}
	return nil
}

// configError says what is wrong in the operator's words.
func configError(err error, text []byte, into any) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field != "" {
		value := strings.NewReplacer("array", "list", "object", "map", "bool", "boolean").Replace(wrong.Value)
		return &relay.FieldError{Field: wrong.Field, Problem: fmt.Sprintf("must be a %s, not a %s", plainType(wrong.Type), value)}
	}
	// encoding/json has no type for this one.
	quoted, unknown := strings.CutPrefix(err.Error(), "json: unknown field ")
	key, notQuoted := strconv.Unquote(quoted)
	if !unknown || notQuoted != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	keys := jsonKeys(reflect.TypeOf(into).Elem())
	hint := "this plugin takes no configuration"
	if nearest := relay.ClosestName(key, keys); nearest != "" {
		hint = "did you mean " + nearest + "?"
	} else if len(keys) > 0 {
		hint = "the keys are " + strings.Join(keys, ", ")
	}
	return &relay.FieldError{Field: keyPath(text, key), Problem: "is an unknown key; " + hint}
}

// keyPath finds a key that the author's struct does not have in what the operator wrote, which is at the top mostly: the path to
// it, of several the first.
func keyPath(text []byte, key string) string {
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

func plainType(t reflect.Type) string {
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

// jsonKeys lists the keys of a struct, those of the structs in it too.
func jsonKeys(t reflect.Type) []string {
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
