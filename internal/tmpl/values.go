package tmpl

import (
	"encoding/base64"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"text/template"
)

// valueFunctions are functions that make values or write them.
func (r *rendering) valueFunctions() template.FuncMap {
	return template.FuncMap{
		"list": r.list, "append": r.append, "dict": r.dict, "toJson": r.toJSON,
		"base64encode": r.boundText(func(s string) string { return base64.URLEncoding.EncodeToString([]byte(s)) }),
		"base64decode": r.boundDecoder(base64Decoder(base64.URLEncoding)),
		"b64enc":       r.boundText(func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }),
		"b64dec":       r.boundDecoder(base64Decoder(base64.StdEncoding)),
		"print":        r.boundWriter(fmt.Sprint), "println": r.boundWriter(fmt.Sprintln), "printf": r.printf,
		"html": r.boundWriter(template.HTMLEscaper), "js": r.boundWriter(template.JSEscaper), "urlquery": r.boundWriter(template.URLQueryEscaper),
	}
}

func base64Decoder(e *base64.Encoding) func(string) (string, error) {
	return func(s string) (string, error) {
		out, err := e.DecodeString(s)
		return string(out), err
	}
}

// boundWriter bounds what the library writes of any values.
func (r *rendering) boundWriter(write func(...any) string) func(...any) (string, error) {
	return func(values ...any) (string, error) {
		if err := r.chargeInputs(values...); err != nil {
			return "", err
		}
		return r.chargeResult(write(values...))
	}
}

// printf knows no width from an argument, and bounds those of the format: fmt allows a million each.
func (r *rendering) printf(format string, values ...any) (string, error) {
	if err := r.chargeInputs(values...); err != nil {
		return "", err
	}
	for range strings.Count(format, "[") { // each may write a value once more
		if err := r.chargeInputs(values...); err != nil {
			return "", err
		}
	}
	width, err := totalWidth(format)
	if err != nil {
		return "", err
	}
	if width > 0 { // which each part of a list gets
		most := 1
		for _, v := range values {
			most = max(most, formattedValues(reflect.ValueOf(v), MaxOutput, true))
		}
		if width = width * most; width > MaxOutput {
			return "", limitError("has widths that make a text of more than 1 MiB")
		}
	}
	if err := r.charge(len(format) + width); err != nil {
		return "", err
	}
	return r.chargeResult(fmt.Sprintf(format, values...))
}

// formattedValues is how many values fmt writes of one; it stops beyond most. Only at the top it follows a pointer.
func formattedValues(v reflect.Value, most int, top bool) int {
	total := 0
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer:
		if v.IsNil() || v.Kind() == reflect.Pointer && !top {
			return 1
		}
		return formattedValues(v.Elem(), most, false)
	case reflect.Slice, reflect.Array:
		for i := 0; i < v.Len() && total <= most; i++ {
			total += formattedValues(v.Index(i), most-total, false)
		}
	case reflect.Map:
		for each := v.MapRange(); total <= most && each.Next(); {
			total += formattedValues(each.Key(), most-total, false) + formattedValues(each.Value(), most-total, false)
		}
	case reflect.Struct:
		for i := 0; i < v.NumField() && total <= most; i++ {
			total += formattedValues(v.Field(i), most-total, false)
		}
	default:
		return 1
	}
	return total
}

// totalWidth adds up the widths and precisions of a format.
func totalWidth(format string) (int, error) {
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

func (r *rendering) list(values ...any) ([]any, error) {
	if values == nil {
		values = []any{}
	}
	return values, r.chargeInputs(values...)
}

// append never changes the list that it is given.
func (r *rendering) append(list []any, values ...any) ([]any, error) {
	out := append(append(make([]any, 0, len(list)+len(values)), list...), values...)
	return out, r.chargeInputs(out)
}

func (r *rendering) dict(values ...any) (map[string]any, error) {
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
	return out, r.chargeInputs(out)
}

// toJSON is Alertmanager's but for what encode says.
func (r *rendering) toJSON(v any) (string, error) {
	if s, ok := v.(string); ok && isPlain(s) {
		return r.chargeResult(`"` + s + `"`) // as most identifiers are, in a tenth of the time
	}
	if err := r.chargeInputs(v); err != nil {
		return "", err
	}
	text, err := encode(v)
	if err != nil {
		return "", err
	}
	return r.chargeResult(text)
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
