package tmpl

import (
	"encoding/json"
	"errors"
	"fmt"
	htmltemplate "html/template"
	"maps"
	"net/url"
	"slices"
	"strings"
	"text/template"
	"time"

	common "github.com/prometheus/common/helpers/templates"
	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// templateFunctions are what a template may call besides the library's own, some of which are replaced by bounded ones. Names,
// arguments and meaning are those of github.com/prometheus/alertmanager/template, and Sprig's where that has none.
func (r *rendering) templateFunctions() template.FuncMap {
	all := template.FuncMap{
		"toUpper": r.boundText(strings.ToUpper), "toLower": r.boundText(strings.ToLower), "trimSpace": r.boundText(strings.TrimSpace),
		"title": r.boundText(func(s string) string { return cases.Title(language.AmericanEnglish).String(s) }),
		"trunc": r.trunc, "join": r.join, "stringSlice": func(s ...string) []string { return s },
		"contains":  func(part, s string) (bool, error) { return strings.Contains(s, part), r.charge(len(s)) },
		"hasPrefix": func(part, s string) bool { return strings.HasPrefix(s, part) },
		"hasSuffix": func(part, s string) bool { return strings.HasSuffix(s, part) },
		"match":     r.match, "reReplaceAll": r.replaceAll,
		"safeHtml":    func(s string) htmltemplate.HTML { return htmltemplate.HTML(s) },
		"safeUrl":     func(s string) htmltemplate.URL { return htmltemplate.URL(s) },
		"urlUnescape": r.boundDecoder(url.QueryUnescape),
		"default":     defaultValue,
	}
	maps.Copy(all, r.timeFunctions())
	maps.Copy(all, r.valueFunctions())
	return all
}

// unsafeFunctions are the functions that go around the escaping of HTML. No template has them where HTML is made: what they would be
// given is what others wrote, and the author's own markup needs none.
func unsafeFunctions() []string { return []string{"safeHtml", "safeUrl"} }

// internalFunctions are the functions that instrument calls.
func (r *rendering) internalFunctions() template.FuncMap {
	return template.FuncMap{
		stepName: r.checkStep, enterName: r.enterTemplate, leaveName: r.leaveTemplate,
		formatName: r.formatTime, appendFormatName: func(...any) (string, error) {
			return "", errors.New("has no place in a template: write times by Format or date")
		},
	}
}

// functionNames are those that a template may call, the library's own included.
func functionNames() []string {
	return slices.Sorted(maps.Keys((&rendering{}).templateFunctions()))
}

// libraryNames are functions of the library that need no bound.
func libraryNames() []string {
	return []string{"and", "call", "index", "slice", "len", "not", "or", "eq", "ne", "lt", "le", "gt", "ge"}
}

// boundText bounds a function of a text.
func (r *rendering) boundText(do func(string) string) func(string) (string, error) {
	return r.boundFallible(func(s string) (string, error) { return do(s), nil })
}

func (r *rendering) boundFallible(do func(string) (string, error)) func(string) (string, error) {
	return func(s string) (string, error) {
		if err := r.charge(len(s)); err != nil {
			return "", err
		}
		out, err := do(s)
		if err != nil {
			return "", err
		}
		return r.chargeResult(out)
	}
}

// boundDecoder bounds a function that may bring back what was cleaned away, which is cleaned again.
func (r *rendering) boundDecoder(do func(string) (string, error)) func(string) (string, error) {
	return r.boundFallible(func(s string) (string, error) {
		out, err := do(s)
		if err != nil || out == s {
			return out, err
		}
		return sanitized(r.clean, out), nil
	})
}

// trunc is Sprig's: the first n characters, or the last -n.
func (r *rendering) trunc(n int, s string) (string, error) {
	if err := r.charge(len(s)); err != nil {
		return "", err
	}
	runes := []rune(s)
	switch {
	case n >= 0 && n < len(runes):
		s = string(runes[:n])
	case n < 0 && -n < len(runes) && -n > 0:
		s = string(runes[len(runes)+n:])
	}
	return r.chargeResult(s)
}

// join has the separator first, for pipelines. It takes lists of decoded JSON as well.
func (r *rendering) join(separator string, list any) (string, error) {
	var texts []string
	switch l := list.(type) {
	case []string:
		texts = l
	case []any:
		if err := r.chargeInputs(list); err != nil {
			return "", err
		}
		for _, v := range l {
			texts = append(texts, fmt.Sprint(v))
		}
	case nil:
	default:
		return "", fmt.Errorf("wants a list of texts, not %T", list)
	}
	length := len(separator) * max(0, len(texts)-1)
	for _, t := range texts {
		length += len(t)
	}
	if length > MaxOutput {
		return "", limitError(fmt.Sprintf("makes a text of more than %d MiB", MaxOutput>>20))
	}
	return r.chargeResult(strings.Join(texts, separator))
}

// defaultValue is Sprig's default: the second value unless that is empty.
func defaultValue(other any, value ...any) any {
	if len(value) == 0 {
		return other
	}
	if yes, ok := template.IsTrue(value[0]); ok && yes {
		return value[0]
	}
	return other
}

func (r *rendering) timeFunctions() template.FuncMap {
	return template.FuncMap{
		"now":   func() time.Time { return r.now() },
		"since": func(t time.Time) time.Duration { return r.now().Sub(t) },
		"date":  r.date,
		"tz": func(name string, t time.Time) (time.Time, error) {
			zone, err := r.cache.loadZone(name)
			if err != nil {
				return time.Time{}, fmt.Errorf("%w: write a name such as Europe/Paris", err)
			}
			return t.In(zone), r.charge(1 << 10)
		},
		"toDate": func(layout, s string) time.Time {
			t, _ := time.ParseInLocation(layout, s, time.UTC)
			return t
		},
		"mustToDate": func(layout, s string) (time.Time, error) { return time.ParseInLocation(layout, s, time.UTC) },
		"humanizeDuration": func(v any) (string, error) {
			if n, ok := v.(json.Number); ok {
				v = n.String()
			}
			if err := r.charge(64); err != nil {
				return "", err
			}
			return common.HumanizeDuration(v)
		},
	}
}

// maxLayout bounds the layout of a time.
const maxLayout = 1 << 10

func (r *rendering) date(layout string, t time.Time) (string, error) {
	if len(layout) > maxLayout {
		return "", limitError(fmt.Sprintf("has a layout of more than %d bytes", maxLayout))
	}
	return r.chargeResult(t.Format(layout))
}

// formatTime stands for the method of times: what that writes may be a layout again, and twice as long each time.
func (r *rendering) formatTime(t any, layout string) (string, error) {
	at, ok := t.(time.Time)
	if !ok {
		return "", fmt.Errorf("wants a time, not %T", t)
	}
	return r.date(layout, at)
}
