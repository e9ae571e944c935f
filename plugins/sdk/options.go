package sdk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"

	"github.com/hubrelay/hubrelay/internal/strictjson"
	"github.com/hubrelay/hubrelay/plugins/internal/wire"
	"github.com/hubrelay/hubrelay/relay"
)

// DefaultConcurrency is the maximum number of concurrent deliveries without [Concurrency]. The sink's own `concurrency`
// is usually lower.
const DefaultConcurrency = 1024

// Option changes what a plugin does besides handling.
type Option func(*options)

type options struct {
	config      any
	concurrency int
	version     string
	start, stop func(context.Context) error
	validate    func(context.Context) error
	explain     func(relay.Delivery) (relay.Preview, error)
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

// OnValidate sets a function that is called in a process that only checks a configuration, started by `hubrelay config
// check` or before a reload. It is called after the configuration was decoded and its Validate succeeded. It reports
// problems that OnStart would find, such as a missing file, and must not connect or change anything. A
// *relay.FieldError names the key. [errors.Join] may join several.
func OnValidate(validate func(context.Context) error) Option {
	return func(o *options) { o.validate = validate }
}

// Explain sets a function that is called in a process that only explains a delivery, started by `hubrelay sinks
// explain`. It is called after the configuration was decoded, without OnStart. It must not send anything, connect, or
// show a secret. Without it the operator sees the input of the plugin. It is for sinks.
func Explain(explain func(relay.Delivery) (relay.Preview, error)) Option {
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

// decode fills the author's struct. Its errors are for the operator. An error about one key is a [relay.FieldError].
func (o *options) decode(text []byte) error {
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte("{}")
	}
	if o.config == nil {
		err := strictjson.Decode(text, &struct{}{})
		var field *relay.FieldError
		if errors.As(err, &field) {
			err = &relay.FieldError{Field: field.Field, Problem: "is an unknown key; this plugin takes no configuration"}
		}
		return err
	}
	if err := strictjson.Decode(text, o.config); err != nil {
		return err
	}
	if v, ok := o.config.(interface{ Validate() error }); ok {
		return v.Validate()
	}
	return nil
}

// newLogHandler writes records in the format that the daemon parses. It writes all levels, and the daemon filters.
func newLogHandler(w io.Writer) slog.Handler {
	return slog.NewJSONHandler(w, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.MessageKey {
				a.Key = wire.LogMessage
			}
			return a
		},
	})
}
