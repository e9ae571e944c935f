package tmpl

import (
	"encoding/base64"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"text/template"
)

// valueFunctions returns the functions that create or format values.
func (r *rendering) valueFunctions() template.FuncMap {
	return template.FuncMap{
		"list":         r.newList,
		"append":       r.appendValues,
		"dict":         r.newDict,
		"toJson":       r.toJSON,
		"base64encode": r.limitText(func(s string) string { return base64.URLEncoding.EncodeToString([]byte(s)) }),
		"base64decode": r.limitDecoder(base64Decoder(base64.URLEncoding)),
		"b64enc":       r.limitText(func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }),
		"b64dec":       r.limitDecoder(base64Decoder(base64.StdEncoding)),
		"print":        r.limitPrinter(fmt.Sprint),
		"println":      r.limitPrinter(fmt.Sprintln),
		"printf":       r.formatValues,
		"html":         r.limitPrinter(template.HTMLEscaper),
		"js":           r.limitPrinter(template.JSEscaper),
		"urlquery":     r.limitPrinter(template.URLQueryEscaper),
	}
}

func base64Decoder(e *base64.Encoding) func(string) (string, error) {
	return func(s string) (string, error) {
		out, err := e.DecodeString(s)
		return string(out), err
	}
}

// limitPrinter adds limits to a function that prints values.
func (r *rendering) limitPrinter(printValues func(...any) string) func(...any) (string, error) {
	return func(values ...any) (string, error) {
		if err := r.chargeInputs(values...); err != nil {
			return "", err
		}
		return r.chargeResult(printValues(values...))
	}
}

// formatValues is fmt.Sprintf without widths from arguments. It limits the widths of the format, because fmt allows a
// million for each.
func (r *rendering) formatValues(format string, values ...any) (string, error) {
	if err := r.chargeInputs(values...); err != nil {
		return "", err
	}
	for range strings.Count(format, "[") { // each explicit index may print a value again
		if err := r.chargeInputs(values...); err != nil {
			return "", err
		}
	}
	width, err := totalWidth(format)
	if err != nil {
		return "", err
	}
	if width > 0 { // fmt applies the width to each element of a list
		elements := 1
		for _, v := range values {
			elements = max(elements, countElements(reflect.ValueOf(v), MaxOutput, true))
		}
		if width *= elements; width > MaxOutput {
			return "", limitError("has widths that produce more than 1 MiB of text")
		}
	}
	if err := r.charge(len(format) + width); err != nil {
		return "", err
	}
	return r.chargeResult(fmt.Sprintf(format, values...))
}

// countElements returns the number of values that fmt prints for v. It stops when the result exceeds limit. Like fmt,
// it follows a pointer only at the top level.
func countElements(v reflect.Value, limit int, isTop bool) int {
	total := 0
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer:
		if v.IsNil() || v.Kind() == reflect.Pointer && !isTop {
			return 1
		}
		return countElements(v.Elem(), limit, false)
	case reflect.Slice, reflect.Array:
		for i := 0; i < v.Len() && total <= limit; i++ {
			total += countElements(v.Index(i), limit-total, false)
		}
	case reflect.Map:
		for each := v.MapRange(); total <= limit && each.Next(); {
			total += countElements(each.Key(), limit-total, false) + countElements(each.Value(), limit-total, false)
		}
	case reflect.Struct:
		for i := 0; i < v.NumField() && total <= limit; i++ {
			total += countElements(v.Field(i), limit-total, false)
		}
	default:
		return 1
	}
	return total
}

// totalWidth returns the sum of the widths and precisions of a format.
func totalWidth(format string) (int, error) {
	total := 0
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			continue
		}
		number := 0
	verb:
		for i++; i < len(format); i++ {
			switch c := format[i]; {
			case c >= '0' && c <= '9':
				if number = number*10 + int(c-'0'); number > MaxOutput {
					return 0, limitError("has a width that produces more than 1 MiB of text")
				}
			case c == '*':
				return 0, errors.New("cannot use a width from an argument: write the number in place of the *")
			case strings.IndexByte("+-# .[]", c) >= 0:
				total, number = total+number, 0
			default:
				break verb
			}
		}
		if total += number; total > MaxOutput {
			return 0, limitError("has widths that produce more than 1 MiB of text")
		}
	}
	return total, nil
}

func (r *rendering) newList(values ...any) ([]any, error) {
	if values == nil {
		values = []any{}
	}
	return values, r.chargeInputs(values...)
}

// appendValues returns a new list with values added. It does not change list.
func (r *rendering) appendValues(list []any, values ...any) ([]any, error) {
	out := append(append(make([]any, 0, len(list)+len(values)), list...), values...)
	return out, r.chargeInputs(out)
}

func (r *rendering) newDict(values ...any) (map[string]any, error) {
	if len(values)%2 != 0 {
		return nil, errors.New("requires a value after every name: pass an even number of arguments")
	}
	out := make(map[string]any, len(values)/2)
	for i := 0; i < len(values); i += 2 {
		name, ok := values[i].(string)
		if !ok {
			return nil, fmt.Errorf("requires strings as names, but argument %d is a %T", i+1, values[i])
		}
		out[name] = values[i+1]
	}
	return out, r.chargeInputs(out)
}

// toJSON encodes a value with encodeJSON.
func (r *rendering) toJSON(v any) (string, error) {
	if s, ok := v.(string); ok && needsNoEscape(s) {
		return r.chargeResult(`"` + s + `"`) // ten times faster than encoding; sufficient for most identifiers
	}
	if err := r.chargeInputs(v); err != nil {
		return "", err
	}
	text, err := encodeJSON(v)
	if err != nil {
		return "", err
	}
	return r.chargeResult(text)
}

// needsNoEscape reports whether JSON represents s without escapes.
func needsNoEscape(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}
