package yamldoc

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// firstToken returns the token at which a reader sees n start. The token of a block map itself is its first colon.
func firstToken(n ast.Node) *token.Token {
	switch m := n.(type) {
	case *ast.MappingValueNode:
		return m.Key.GetToken()
	case *ast.MappingNode:
		if !m.IsFlowStyle && len(m.Values) > 0 {
			return m.Values[0].Key.GetToken()
		}
		return m.Start
	}
	return n.GetToken()
}

// repairHostPort fixes a bug of the parser, which parses the item http://host:80 of a list inside {} as a map. In
// YAML a colon ends a plain key only before a space.
func (p *yamlParser) repairHostPort(n ast.Node) *Value {
	if m, ok := n.(*ast.MappingNode); ok && len(m.Values) == 1 && m.Start.Type != token.MappingStartType {
		n = m.Values[0]
	}
	m, ok := n.(*ast.MappingValueNode)
	if !ok {
		return nil
	}
	key, isText := m.Key.(*ast.StringNode)
	scalar, isScalar := m.Value.(ast.ScalarNode)
	if !isText || !isScalar || key.Token.Type != token.StringType {
		return nil
	}
	colon, rest := m.Start.Position, scalar.GetToken().Position
	if rest.Line != colon.Line || rest.Column != colon.Column+1 {
		return nil
	}
	return &Value{Shape: String, Text: key.Value + ":" + scalar.GetToken().Value, At: p.positionOf(key.Token)}
}

// convertNode converts a node with all its children.
func (p *yamlParser) convertNode(n ast.Node, path string, depth int) *Value {
	if n == nil {
		return &Value{At: p.origin}
	}
	v := &Value{At: p.positionOf(firstToken(n))}
	if p.count++; p.count > MaxValues || depth > maxDepth {
		if p.count <= MaxValues || p.count == MaxValues+1 {
			p.ErrorAt(v.At, path, fmt.Sprintf("exceeds the limit of %d values in %d levels", MaxValues, maxDepth), "")
		}
		v.Invalid = true
		return v
	}
	switch n := n.(type) {
	case *ast.MappingNode:
		v.Shape = Map
		p.convertMap(v, n.Values, path, depth)
	case *ast.MappingValueNode:
		v.Shape = Map
		p.convertMap(v, []*ast.MappingValueNode{n}, path, depth)
	case *ast.SequenceNode:
		v.Shape = List
		for i, item := range n.Values {
			if s := p.repairHostPort(item); s != nil {
				v.Items = append(v.Items, s)
				continue
			}
			v.Items = append(v.Items, p.convertNode(item, fmt.Sprintf("%s[%d]", path, i), depth+1))
		}
	case *ast.AnchorNode:
		inner := p.convertNode(n.Value, path, depth+1)
		if n.Name != nil {
			p.anchors[n.Name.GetToken().Value] = inner
		}
		return inner
	case *ast.AliasNode:
		return p.convertAlias(n, v, path)
	case *ast.TagNode:
		hint := quoteExclusion
		if strings.HasPrefix(n.GetToken().Value, "!!") {
			hint = "remove the tag, or put the text between quotes"
		}
		p.ErrorAt(v.At, path, "tags are not supported", hint) // without the tag, which may be a secret without quotes
		v.Invalid = true
	default:
		p.convertScalar(v, n, path)
	}
	return v
}

func (p *yamlParser) convertAlias(n *ast.AliasNode, v *Value, path string) *Value {
	name := ""
	if n.Value != nil {
		name = n.Value.GetToken().Value
	}
	target, ok := p.anchors[name]
	if !ok {
		p.ErrorAt(v.At, path, "there is no anchor of this name above", quoteStar) // it may be a secret without quotes
		v.Invalid = true
		return v
	}
	return target
}

func (p *yamlParser) convertScalar(v *Value, n ast.Node, path string) {
	v.Text = n.GetToken().Value
	switch n := n.(type) {
	case *ast.NullNode:
		v.Text = ""
	case *ast.StringNode:
		v.Shape, v.Text = String, n.Value
		// YAML allows no such text, but the parser does. It may contain a secret.
		if n.Token.Type == token.StringType && strings.Contains(n.Value, ": ") {
			p.ErrorAt(v.At, path, `contains ": " in text without quotes`, "add the missing comma before the next key, or put the text between quotes")
			v.Invalid = true
		}
	case *ast.LiteralNode:
		v.Shape, v.Text = String, ""
		if n.Value != nil {
			v.Text = n.Value.Value
		}
	case *ast.IntegerNode:
		v.Shape = Int
	case *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		v.Shape = Float
	case *ast.BoolNode:
		v.Shape = Bool
	default:
		p.ErrorAt(v.At, path, "is not a value", "")
		v.Invalid = true
	}
}

// convertMap fills the map v: its own keys first, then the keys from merge keys (<<).
func (p *yamlParser) convertMap(v *Value, nodes []*ast.MappingValueNode, path string, depth int) {
	seen := make(map[string]Position, len(nodes))
	var merged []*Value
	for _, n := range nodes {
		if n.Key == nil {
			continue
		}
		if n.Key.IsMergeKey() {
			merged = append(merged, p.convertNode(n.Value, path, depth+1))
			continue
		}
		key, ok := p.mapKey(n.Key, path)
		if !ok {
			continue
		}
		at := p.positionOf(n.Key.GetToken())
		below := Join(path, key)
		child := p.convertNode(n.Value, below, depth+1)
		if first, isDuplicate := seen[key]; isDuplicate {
			p.ErrorAt(at, below, "is given twice", fmt.Sprintf("the first is in line %d", first.Line))
			continue
		}
		seen[key] = at
		v.Entries = append(v.Entries, Entry{Key: key, At: at, Value: child})
	}
	p.mergeMaps(v, merged, seen, path)
}

func (p *yamlParser) mergeMaps(v *Value, merged []*Value, seen map[string]Position, path string) {
	for len(merged) > 0 {
		from := merged[0]
		merged = merged[1:]
		if p.count += len(from.Items) + len(from.Entries); p.count > MaxValues {
			p.ErrorAt(from.At, path, fmt.Sprintf("exceeds the limit of %d values", MaxValues), "")
			return
		}
		switch from.Shape {
		case List:
			merged = append(append([]*Value{}, from.Items...), merged...)
		case Map:
			for _, e := range from.Entries {
				if _, own := seen[e.Key]; !own {
					seen[e.Key] = e.At
					v.Entries = append(v.Entries, e)
				}
			}
		default:
			if from.Invalid {
				continue
			}
			p.ErrorAt(from.At, path, "only a map can be merged with <<", "")
		}
	}
}

func (p *yamlParser) mapKey(n ast.MapKeyNode, path string) (string, bool) {
	var node ast.Node = n
	if k, ok := n.(*ast.MappingKeyNode); ok {
		node = k.Value
	}
	if s, ok := node.(ast.ScalarNode); ok {
		v := &Value{At: p.positionOf(s.GetToken())}
		p.convertScalar(v, s, path)
		return v.Text, !v.Invalid
	}
	p.ErrorAt(p.positionOf(n.GetToken()), path, "a key must be a plain word", "")
	return "", false
}

// Join returns the path of a key below path.
func Join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// Scalar returns the value of a scalar: a bool, an int64, a float64, or its text.
func (v *Value) Scalar() any {
	switch v.Shape {
	case Bool:
		return v.Text == "true"
	case Int:
		if i, err := ParseInt(v.Text); err == nil {
			return i
		}
	case Float:
		if x, err := strconv.ParseFloat(v.Text, 64); err == nil && !math.IsInf(x, 0) && !math.IsNaN(x) {
			return x
		}
	}
	return v.Text
}

// ParseInt parses a whole number. Digits may be separated by "_".
func ParseInt(s string) (int64, error) {
	return strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 10, 64)
}
