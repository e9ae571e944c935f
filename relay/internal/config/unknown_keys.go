package config

import (
	"strings"

	"github.com/hubrelay/hubrelay/internal/suggest"
	"github.com/hubrelay/hubrelay/internal/yamldoc"
)

func (c *converter) reportUnknown(n *node, e yamldoc.Entry, path string) {
	below := yamldoc.Join(path, e.Key)
	hint, home := yamldoc.DidYouMean(e.Key, n.names()), c.sectionOf(c.root, e.Key, "")
	switch {
	case n.types[e.Key] != nil:
		hint = "it is the type of a sink; add type: " + e.Key + ", and move these settings one level up"
	case hint != "":
	case e.Value.Shape == yamldoc.Null:
		c.reportRest(e, path)
		return
	case home != "" && home != path && !strings.HasPrefix(path, "sinks."):
		hint = "it belongs to " + home
	default:
		hint = listKeys(e.Key, n)
	}
	c.ErrorAt(e.At, below, "unknown key", hint)
}

// reportRest reports an unknown key without a value. It may be the rest of a text with a comma, such as a secret, so it is not
// printed.
func (c *converter) reportRest(e yamldoc.Entry, path string) {
	c.ErrorAt(e.At, path, "has an unknown key without a value", "text with a comma needs quotes inside { }")
}

// listKeys returns a hint with the valid keys of n, or with the nearest ones if the type of the sink is unknown.
func listKeys(key string, n *node) string {
	if n.anyType {
		return "the nearest keys are " + strings.Join(suggest.ClosestNames(key, n.names(), 3), ", ")
	}
	return "the keys here are " + strings.Join(n.names(), ", ")
}

// sectionOf returns the path of the section that has the key. It does not search sinks.
func (c *converter) sectionOf(n *node, key, path string) string {
	for _, f := range n.fields {
		if f.node.kind != kindObject {
			continue
		}
		if f.node.field(key) != nil {
			return yamldoc.Join(path, f.name)
		}
		if home := c.sectionOf(f.node, key, yamldoc.Join(path, f.name)); home != "" {
			return home
		}
	}
	return ""
}
