package config

import (
	"bytes"
	"crypto/sha256"
	"encoding"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/durations"
	"github.com/hubrelay/hubrelay/internal/yamldoc"
)

// Redacted replaces secrets in the output of [Config.Print].
const Redacted = "(redacted)"

// Print writes the effective configuration as YAML, with the origin of each value. Secrets are redacted. In a URL,
// the user, the password, the query and, for http, the path are redacted.
func (c *Config) Print(w io.Writer) error {
	p := &printer{origins: c.origins}
	p.printObject(c.schema.fields, reflect.ValueOf(*c), "", "")
	_, err := p.out.WriteTo(w)
	return err
}

type printer struct {
	out     bytes.Buffer
	origins yamldoc.Origins
}

func (p *printer) printObject(fields []*field, v reflect.Value, indent, path string) {
	for _, f := range fields {
		below := yamldoc.Join(path, f.name)
		switch fv := v.FieldByIndex(f.index); {
		case f.node.kind == kindObject:
			p.printf("%s%s:\n", indent, f.name)
			p.printObject(f.node.fields, driverSettings(fv), indent+"  ", below)
		case f.node.kind == kindSinks:
			p.printSinks(f, fv, indent, below)
		case f.node.kind == kindNamed:
			p.printNamed(f, fv, indent, below)
		case f.node.kind == kindList && f.node.elem.kind == kindObject && fv.Len() > 0:
			p.printf("%s%s:\n", indent, f.name)
			for i := range fv.Len() {
				p.printItem(f.node.elem, fv.Index(i), indent+"  ", fmt.Sprintf("%s[%d]", below, i))
			}
		default:
			p.printf("%s%s: %s%s\n", indent, f.name, f.inlineYAML(f.node, fv), p.originComment(below))
		}
	}
}

// printItem prints an object of a list. The dash replaces the indentation of the first key.
func (p *printer) printItem(n *node, v reflect.Value, indent, path string) {
	start := p.out.Len()
	p.printObject(n.fields, v, indent+"  ", path)
	p.out.Bytes()[start+len(indent)] = '-'
}

func (p *printer) printSinks(f *field, v reflect.Value, indent, path string) {
	sinks, _ := v.Interface().(map[string]Sink)
	if len(sinks) == 0 {
		p.printf("%s%s: {}%s\n", indent, f.name, p.originComment(path))
		return
	}
	p.printf("%s%s:\n", indent, f.name)
	names := make([]string, 0, len(sinks))
	for name := range sinks {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		s := sinks[name]
		p.printf("%s  %s:\n", indent, scalarYAML(name))
		own := f.node.types[s.Type].fields[len(f.node.fields):]
		p.printObject(f.node.fields, reflect.ValueOf(s), indent+"    ", path+"."+name)
		p.printObject(own, reflect.Indirect(reflect.ValueOf(s.Settings)), indent+"    ", path+"."+name)
	}
}

// printNamed prints a map of named objects.
func (p *printer) printNamed(f *field, v reflect.Value, indent, path string) {
	if v.Len() == 0 {
		p.printf("%s%s: {}%s\n", indent, f.name, p.originComment(path))
		return
	}
	p.printf("%s%s:\n", indent, f.name)
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	for _, k := range keys {
		p.printf("%s  %s:\n", indent, scalarYAML(k.String()))
		p.printObject(f.node.elem.fields, v.MapIndex(k), indent+"    ", path+"."+k.String())
	}
}

func (p *printer) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(&p.out, format, args...) // a buffer never fails
}

func (p *printer) originComment(path string) string {
	switch at, given := p.origins[path]; {
	case !given:
		return ""
	case at.Variable != "":
		return "  # " + at.Variable
	default:
		return fmt.Sprintf("  # line %d", at.Line)
	}
}

// inlineYAML formats a value as one line of YAML.
func (f *field) inlineYAML(n *node, v reflect.Value) string {
	switch n.kind {
	case kindList:
		items := make([]string, v.Len())
		for i := range items {
			items[i] = f.inlineYAML(n.elem, v.Index(i))
		}
		return "[" + strings.Join(items, ", ") + "]"
	case kindMap:
		var items []string
		for _, k := range v.MapKeys() {
			items = append(items, scalarYAML(k.String())+": "+f.inlineYAML(n.elem, v.MapIndex(k)))
		}
		slices.Sort(items)
		return "{" + strings.Join(items, ", ") + "}"
	case kindAny:
		text, err := json.Marshal(v.Interface())
		if err != nil || f.secrecy != public {
			return scalarYAML(Redacted)
		}
		return string(text)
	case kindBool, kindInt, kindFloat:
		return fmt.Sprint(v.Interface())
	default:
		return scalarYAML(f.redact(formatScalar(v)))
	}
}

// formatScalar formats a scalar in the syntax of the file.
func formatScalar(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return durations.Format(x)
	case time.Time:
		if x.IsZero() {
			return ""
		}
		return x.Format(time.RFC3339)
	case encoding.TextMarshaler:
		b, err := x.MarshalText()
		if err != nil {
			return ""
		}
		return string(b)
	default:
		return fmt.Sprint(x)
	}
}

// Address returns the address of Redis for logs, without user, password and parameters.
func (r Redis) Address() string {
	if r.URL == "" {
		return "embedded, in " + r.DataDir
	}
	return (&field{secrecy: secretURL}).redact(r.URL)
}

// Identity returns a short name of the data in Redis: 16 hexadecimal digits that depend on the address, the
// database and the prefix, but not on the password.
func (r Redis) Identity() string {
	where := r.DataDir
	if a, ok := parseURLParts(r.URL); ok {
		query, _ := url.ParseQuery(a.query)
		where = a.scheme + "://" + a.hosts + a.path + "?" + query.Get("db")
	} else if abs, err := filepath.Abs(r.DataDir); err == nil {
		where = abs
		if resolved, err := filepath.EvalSymlinks(abs); err == nil {
			where = resolved
		}
	}
	sum := sha256.Sum256([]byte(where + "\n" + r.Prefix))
	return hex.EncodeToString(sum[:8])
}

func (f *field) redact(s string) string {
	switch {
	case s == "" || f.secrecy == public:
		return s
	case f.secrecy == secret:
		return Redacted
	}
	u, ok := parseURLParts(s)
	if !ok {
		if strings.ContainsAny(s, "/@?") {
			return Redacted
		}
		return s
	}
	if u.hasStrayAt() {
		return u.scheme + "://" + Redacted
	}
	shown := u.scheme + "://"
	if u.user != "" {
		shown += Redacted + "@"
	}
	shown += u.hosts
	if web := u.scheme == "http" || u.scheme == "https"; web && len(u.path) > 1 {
		shown += "/" + Redacted
	} else {
		shown += u.path
	}
	if u.query != "" {
		shown += "?" + Redacted
	}
	return shown
}

var plainScalar = onceRegexp(`^[A-Za-z./][A-Za-z0-9_./-]*(:[A-Za-z0-9_./-]+)*$|` +
	`^[0-9.]+:[0-9]+$|^([0-9.]+[a-zµ]+)+$|^[0-9]+[KMG]iB$`)

// scalarYAML quotes s unless YAML reads the plain text as the same string.
func scalarYAML(s string) string {
	switch strings.ToLower(s) {
	case "true", "false", "null", "yes", "no", "on", "off", ".nan", ".inf", "y", "n":
		return strconv.Quote(s)
	}
	if plainScalar().MatchString(s) {
		return s
	}
	quoted, _ := json.Marshal(s) // a string always has a JSON form, which is valid YAML
	return string(quoted)
}
