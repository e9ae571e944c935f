package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/knadh/koanf/providers/env/v2"

	"github.com/hubrelay/hubrelay/internal/yamldoc"
)

const (
	envPrefix = "HUBRELAY_"
	envLevel  = "__"
	// delim joins the keys of a path for koanf. It cannot occur in a key.
	delim = "\x1f"
)

// envProvider returns the environment variables of the daemon as a koanf provider.
func (c *converter) envProvider(environ []string) *env.Env {
	sorted := slices.Sorted(slices.Values(environ))
	return env.Provider(delim, env.Opt{
		Prefix:        envPrefix,
		EnvironFunc:   func() []string { return sorted },
		TransformFunc: c.parseEnvVar,
	})
}

// parseEnvVar converts one environment variable to its path, joined by delim, and its value. The path is empty if
// the variable is ignored or invalid.
func (c *converter) parseEnvVar(name, text string) (string, any) {
	rest := strings.TrimPrefix(name, envPrefix)
	if !strings.Contains(rest, envLevel) {
		c.warnSingleUnderscore(name)
		return "", nil // The commands use these variables.
	}
	pos := yamldoc.Position{Variable: name}
	keys, f := c.findField(c.root, strings.Split(strings.ToLower(rest), envLevel))
	if f == nil {
		if known := c.acceptedVars(); slices.Contains(known, name) {
			c.ErrorAt(pos, "", "is ambiguous, because - and _ are the same in a variable",
				"set it in the file, or rename one of them")
		} else {
			c.ErrorAt(pos, "", "there is no such setting", yamldoc.DidYouMean(name, known))
		}
		return "", nil
	}
	path := strings.Join(keys, ".")
	v := &yamldoc.Value{Shape: yamldoc.String, Text: text, At: pos}
	switch {
	case f.node.kind == kindList && f.node.elem.kind != kindObject:
		v = splitList(text, pos)
	case f.node.kind == kindList, f.node.kind == kindMap, f.node.kind == kindAny:
		if v = c.Parse([]byte(text), pos); v == nil {
			return "", nil
		}
	}
	for known := range c.Origins { // The variable replaces the value of the file.
		if strings.HasPrefix(known, path+"[") || strings.HasPrefix(known, path+".") {
			delete(c.Origins, known)
		}
	}
	if named := strings.Join(keys[:2], "."); c.namesOf(c.root.field(keys[0]).node) != nil &&
		c.Origins[named] == (yamldoc.Position{}) {
		c.Origins[named] = pos
	}
	x, ok := c.convert(f.node, f, v, path)
	if !ok {
		return "", nil
	}
	return strings.Join(keys, delim), x
}

// warnSingleUnderscore warns about a variable that joins the levels of a known setting with a single underscore.
func (c *converter) warnSingleUnderscore(name string) {
	for _, known := range c.acceptedVars() {
		if strings.ReplaceAll(known, envLevel, "_") == name {
			c.Warnings = append(c.Warnings, c.Problem(yamldoc.Position{
				Variable: name,
			}, "", "is not read: levels are joined by "+envLevel,
				fmt.Sprintf("did you mean %q?", known)))
		}
	}
}

func splitList(text string, pos yamldoc.Position) *yamldoc.Value {
	list := &yamldoc.Value{Shape: yamldoc.List, At: pos}
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			list.Items = append(list.Items, &yamldoc.Value{Shape: yamldoc.String, Text: item, At: pos})
		}
	}
	return list
}

// findField follows keys through the schema. It returns the keys in the spelling of the configuration, and the
// field.
func (c *converter) findField(n *node, keys []string) ([]string, *field) {
	f := n.field(keys[0])
	switch {
	case f == nil:
		return nil, nil
	case len(keys) == 1 && f.node.kind != kindObject && c.namesOf(f.node) == nil:
		return keys, f
	case len(keys) > 1 && f.node.kind == kindObject:
		rest, found := c.findField(f.node, keys[1:])
		return append([]string{keys[0]}, rest...), found
	case len(keys) > 2 && c.namesOf(f.node) != nil:
		name := matchEnvName(keys[1], c.namesOf(f.node))
		if name == "" {
			return nil, nil
		}
		rest, found := c.findField(c.namedNode(f.node, name), keys[2:])
		return append([]string{keys[0], name}, rest...), found
	}
	return nil, nil
}

// namesOf returns the names in a map of sinks or sources, or nil for other nodes.
func (c *converter) namesOf(n *node) map[string]string {
	switch n.kind {
	case kindSinks:
		return c.types
	case kindNamed:
		return c.upstreams
	}
	return nil
}

// namedNode returns the schema of one entry of such a map.
func (c *converter) namedNode(n *node, name string) *node {
	if n.kind == kindNamed {
		return n.elem
	}
	return c.sinkNode(n, name)
}

// matchEnvName returns the known name that a variable refers to. Variables cannot contain the "-" of a name. If
// several names are possible, it returns "".
func matchEnvName(name string, known map[string]string) string {
	if _, exact := known[name]; exact {
		return name
	}
	meant := name
	for one := range known {
		if strings.ReplaceAll(one, "-", "_") != name {
			continue
		}
		if meant != name {
			return ""
		}
		meant = one
	}
	return meant
}

// acceptedVars returns the names of all accepted variables.
func (c *converter) acceptedVars() []string {
	var names []string
	var walk func(n *node, prefix string)
	walk = func(n *node, prefix string) {
		for _, f := range n.fields {
			name := prefix + strings.ToUpper(f.name)
			switch f.node.kind {
			case kindObject:
				walk(f.node, name+envLevel)
			case kindSinks, kindNamed:
				for one := range c.namesOf(f.node) {
					upper := strings.ToUpper(strings.ReplaceAll(one, "-", "_"))
					walk(c.namedNode(f.node, one), name+envLevel+upper+envLevel)
				}
			default:
				names = append(names, name)
			}
		}
	}
	walk(c.root, envPrefix)
	slices.Sort(names)
	return names
}
