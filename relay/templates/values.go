package templates

import (
	"encoding/base64"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"text/template"
)

// values are functions that make values or write them.
func (r *run) values() template.FuncMap {
	return template.FuncMap{
		"list": r.list, "append": r.append, "dict": r.dict, "toJson": r.toJSON,
		"base64encode": r.text(func(s string) string { return base64.URLEncoding.EncodeToString([]byte(s)) }),
		"base64decode": r.decoded(decoder(base64.URLEncoding)),
		"b64enc":       r.text(func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }),
		"b64dec":       r.decoded(decoder(base64.StdEncoding)),
		"print":        r.written(fmt.Sprint), "println": r.written(fmt.Sprintln), "printf": r.printf,
		"html": r.written(template.HTMLEscaper), "js": r.written(template.JSEscaper), "urlquery": r.written(template.URLQueryEscaper),
	}
}

func decoder(e *base64.Encoding) func(string) (string, error) {
	return func(s string) (string, error) {
		out, err := e.DecodeString(s)
		return string(out), err
	}
}

// written bounds what the library writes of any values.
func (r *run) written(write func(...any) string) func(...any) (string, error) {
	return func(values ...any) (string, error) {
		if err := r.read(values...); err != nil {
			return "", err
		}
		return r.made(write(values...))
	}
}

// printf knows no width from an argument, and bounds those of the format: fmt allows a million each.
func (r *run) printf(format string, values ...any) (string, error) {
	if err := r.read(values...); err != nil {
		return "", err
	}
	for range strings.Count(format, "[") { // each may write a value once more
		if err := r.read(values...); err != nil {
			return "", err
		}
	}
	width, err := widths(format)
	if err != nil {
		return "", err
	}
	if width > 0 { // which each part of a list gets
		most := 1
		for _, v := range values {
			most = max(most, parts(reflect.ValueOf(v), MaxOutput, true))
		}
		if width = width * most; width > MaxOutput {
			return "", limitError("has widths that make a text of more than 1 MiB")
		}
	}
	if err := r.spend(len(format) + width); err != nil {
		return "", err
	}
	return r.made(fmt.Sprintf(format, values...))
}

// parts is how many values fmt writes of one; it stops beyond most. Only at the top it follows a pointer.
func parts(v reflect.Value, most int, top bool) int {
	total := 0
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer:
		if v.IsNil() || v.Kind() == reflect.Pointer && !top {
			return 1
		}
		return parts(v.Elem(), most, false)
	case reflect.Slice, reflect.Array:
		for i := 0; i < v.Len() && total <= most; i++ {
			total += parts(v.Index(i), most-total, false)
		}
	case reflect.Map:
		for each := v.MapRange(); total <= most && each.Next(); {
			total += parts(each.Key(), most-total, false) + parts(each.Value(), most-total, false)
		}
	case reflect.Struct:
		for i := 0; i < v.NumField() && total <= most; i++ {
			total += parts(v.Field(i), most-total, false)
		}
	default:
		return 1
	}
	return total
}

// widths adds up the widths and precisions of a format.
func widths(format string) (int, error) {
	total := 0
	for at := 0; at < len(format); at++ {
		if format[at] != '%' {
			continue
		}
		number := 0
	verb:
		for at++; at < len(format); at++ {
			switch c := format[at]; {
			case c >= '0' && c <= '9':
				if number = number*10 + int(c-'0'); number > MaxOutput {
					return 0, limitError("has a width that makes a text of more than 1 MiB")
				}
			case c == '*':
				return 0, errors.New("knows no width from an argument: write the number in place of the *")
			case strings.IndexByte("+-# .[]", c) >= 0:
				total, number = total+number, 0
			default:
				break verb
			}
		}
		if total += number; total > MaxOutput {
			return 0, limitError("has widths that make a text of more than 1 MiB")
		}
	}
	return total, nil
}

func (r *run) list(values ...any) ([]any, error) {
	if values == nil {
		values = []any{}
	}
	return values, r.read(values...)
}

// append never changes the list that it is given.
func (r *run) append(list []any, values ...any) ([]any, error) {
	out := append(append(make([]any, 0, len(list)+len(values)), list...), values...)
	return out, r.read(out)
}

func (r *run) dict(values ...any) (map[string]any, error) {
	if len(values)%2 != 0 {
		return nil, errors.New("wants a value behind every name: an even number of arguments")
	}
	out := make(map[string]any, len(values)/2)
	for i := 0; i < len(values); i += 2 {
		name, ok := values[i].(string)
		if !ok {
			return nil, fmt.Errorf("wants texts as names, and argument %d is a %T", i+1, values[i])
		}
		out[name] = values[i+1]
	}
	return out, r.read(out)
}

// toJSON is Alertmanager's but for what encode says.
func (r *run) toJSON(v any) (string, error) {
	if s, ok := v.(string); ok && isPlain(s) {
		return r.made(`"` + s + `"`) // as most identifiers are, in a tenth of the time
	}
	if err := r.read(v); err != nil {
		return "", err
	}
	text, err := encode(v)
	if err != nil {
		return "", err
	}
	return r.made(text)
}

// isPlain tells whether JSON has a text as it is.
func isPlain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}
