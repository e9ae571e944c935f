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

	"github.com/hubrelay/hubrelay/relay"
	common "github.com/prometheus/common/helpers/templates"
	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// templateFunctions returns the functions that templates may call in addition to the built-in functions. Some of them
// replace a built-in function by one with limits. Names, arguments and meaning follow
// github.com/prometheus/alertmanager/template, and Sprig for functions that Alertmanager lacks.
func (r *rendering) templateFunctions() template.FuncMap {
	all := template.FuncMap{
		"toUpper":      r.limitText(strings.ToUpper),
		"toLower":      r.limitText(strings.ToLower),
		"trimSpace":    r.limitText(strings.TrimSpace),
		"title":        r.limitText(func(s string) string { return cases.Title(language.AmericanEnglish).String(s) }),
		"trunc":        r.truncate,
		"join":         r.join,
		"stringSlice":  func(s ...string) []string { return s },
		"contains":     func(part, s string) (bool, error) { return strings.Contains(s, part), r.charge(len(s)) },
		"hasPrefix":    func(part, s string) bool { return strings.HasPrefix(s, part) },
		"hasSuffix":    func(part, s string) bool { return strings.HasSuffix(s, part) },
		"match":        r.matchPattern,
		"reReplaceAll": r.replaceAll,
		"safeHtml":     func(s string) htmltemplate.HTML { return htmltemplate.HTML(s) },
		"safeUrl":      func(s string) htmltemplate.URL { return htmltemplate.URL(s) },
		"urlUnescape":  r.limitDecoder(url.QueryUnescape),
		"default":      defaultValue,
	}
	maps.Copy(all, r.timeFunctions())
	maps.Copy(all, r.valueFunctions())
	return all
}

// unsafeFunctions returns the functions that turn off the escaping of HTML. HTML templates do not have them: their
// arguments would be texts of producers, and the markup of the author needs no escaping.
func unsafeFunctions() []string { return []string{"safeHtml", "safeUrl"} }

// internalFunctions returns the functions whose calls addLimits inserts.
func (r *rendering) internalFunctions() template.FuncMap {
	return template.FuncMap{
		stepName: r.checkStep, enterName: r.enterTemplate, leaveName: r.leaveTemplate,
		formatName: r.formatTime, appendFormatName: func(...any) (string, error) {
			return "", errors.New("is not available in a template: format times with Format or date")
		},
	}
}

// functionNames returns the names of templateFunctions.
func functionNames() []string {
	return slices.Sorted(maps.Keys((&rendering{}).templateFunctions()))
}

// libraryNames returns the names of the built-in functions that need no limit.
func libraryNames() []string {
	return []string{"and", "call", "index", "slice", "len", "not", "or", "eq", "ne", "lt", "le", "gt", "ge"}
}

// limitText adds limits to a function that converts a text.
func (r *rendering) limitText(do func(string) string) func(string) (string, error) {
	return r.limitFallible(func(s string) (string, error) { return do(s), nil })
}

func (r *rendering) limitFallible(do func(string) (string, error)) func(string) (string, error) {
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

// limitDecoder adds limits to a function that decodes a text. It cleans the result, because decoding may restore parts
// that Options.Clean removed.
func (r *rendering) limitDecoder(do func(string) (string, error)) func(string) (string, error) {
	return r.limitFallible(func(s string) (string, error) {
		out, err := do(s)
		if err != nil || out == s {
			return out, err
		}
		return cleanText(r.clean, out), nil
	})
}

// truncate returns the first n characters, or the last -n if n is negative, as in Sprig.
func (r *rendering) truncate(n int, s string) (string, error) {
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

// join joins the elements of list. The separator comes first to support pipelines. It accepts lists of decoded JSON.
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
		return "", fmt.Errorf("requires a list of strings, got %T", list)
	}
	length := len(separator) * max(0, len(texts)-1)
	for _, t := range texts {
		length += len(t)
	}
	if length > MaxOutput {
		return "", limitError(fmt.Sprintf("produces more than %d MiB of text", MaxOutput>>20))
	}
	return r.chargeResult(strings.Join(texts, separator))
}

// defaultValue returns value, or fallback if value is empty or missing, as in Sprig.
func defaultValue(fallback any, value ...any) any {
	if len(value) == 0 {
		return fallback
	}
	if isTrue, ok := template.IsTrue(value[0]); ok && isTrue {
		return value[0]
	}
	return fallback
}

func (r *rendering) timeFunctions() template.FuncMap {
	return template.FuncMap{
		"now":   func() time.Time { return r.now() },
		"since": func(t time.Time) time.Duration { return r.now().Sub(t) },
		"date":  r.formatDate,
		"tz": func(name string, t time.Time) (time.Time, error) {
			zone, err := r.cache.loadZone(name)
			if err != nil {
				return time.Time{}, fmt.Errorf("%w: use a name such as Europe/Paris", err)
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

// maxLayout is the maximum length of a time layout, in bytes.
const maxLayout = 1 << 10

func (r *rendering) formatDate(layout string, t time.Time) (string, error) {
	if len(layout) > maxLayout {
		return "", limitError(fmt.Sprintf("has a layout of more than %d bytes", maxLayout))
	}
	return r.chargeResult(t.Format(layout))
}

// formatTime replaces time.Time.Format. A loop could use each result as the next layout and double its length.
func (r *rendering) formatTime(v any, layout string) (string, error) {
	t, ok := v.(time.Time)
	if !ok {
		return "", fmt.Errorf("requires a time, got %T", v)
	}
	return r.formatDate(layout, t)
}

// MaxLink is the maximum length of a link in a message, in bytes.
const MaxLink = 2000

// CheckLink returns an error if the rendered text is not a valid link for a message. White space alone means that the
// message has no link.
func CheckLink(text []byte) error {
	link := strings.TrimSpace(string(text))
	if link == "" {
		return nil
	}
	u, err := url.Parse(link)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" ||
		strings.ContainsAny(link, "<>| \n\t") || len(link) > MaxLink {
		return fmt.Errorf(
			"makes %q, which is no address: start it with https:// and apply urlquery to values from producers",
			relay.Truncate(link, 100))
	}
	return nil
}
