package config

import (
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// firstToken is where a reader sees n begin: a block map has the token of its first colon.
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

// hostPort mends a mistake of the parser, which takes the item http://host:80 of a list inside {} for a map. In YAML a
// colon ends a plain key only before a space.
func (p *yamlParser) hostPort(n ast.Node) *value {
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
	return &value{shape: shapeString, text: key.Value + ":" + scalar.GetToken().Value, at: p.at(key.Token)}
}

// value converts a node and everything below it.
func (p *yamlParser) value(n ast.Node, path string, depth int) *value {
	if n == nil {
		return &value{at: p.origin}
	}
	v := &value{at: p.at(firstToken(n))}
	if p.count++; p.count > maxValues || depth > maxDepth {
		if p.count <= maxValues || p.count == maxValues+1 {
			p.badAt(v.at, path, fmt.Sprintf("is too much: %d values in %d levels are the limit", maxValues, maxDepth), "")
		}
		v.broken = true
		return v
	}
	switch n := n.(type) {
	case *ast.MappingNode:
		v.shape = shapeMap
		p.entries(v, n.Values, path, depth)
	case *ast.MappingValueNode:
		v.shape = shapeMap
		p.entries(v, []*ast.MappingValueNode{n}, path, depth)
	case *ast.SequenceNode:
		v.shape = shapeList
		for i, item := range n.Values {
			if s := p.hostPort(item); s != nil {
				v.items = append(v.items, s)
				continue
			}
			v.items = append(v.items, p.value(item, fmt.Sprintf("%s[%d]", path, i), depth+1))
		}
	case *ast.AnchorNode:
		inner := p.value(n.Value, path, depth+1)
		if n.Name != nil {
			p.anchors[n.Name.GetToken().Value] = inner
		}
		return inner
	case *ast.AliasNode:
		return p.alias(n, v, path)
	case *ast.TagNode:
		hint := quoteExclusion
		if strings.HasPrefix(n.GetToken().Value, "!!") {
			hint = "leave the tag out"
		}
		p.badAt(v.at, path, "tags such as "+n.GetToken().Value+" have no meaning here", hint)
		v.broken = true
	default:
		p.scalar(v, n, path)
	}
	return v
}

func (p *yamlParser) alias(n *ast.AliasNode, v *value, path string) *value {
	name := ""
	if n.Value != nil {
		name = n.Value.GetToken().Value
	}
	target, ok := p.anchors[name]
	if !ok {
		p.badAt(v.at, path, fmt.Sprintf("there is no anchor %q above", name), quoteStar)
		v.broken = true
		return v
	}
	return target
}

func (p *yamlParser) scalar(v *value, n ast.Node, path string) {
	v.text = n.GetToken().Value
	switch n := n.(type) {
	case *ast.NullNode:
		v.text = ""
	case *ast.StringNode:
		v.shape, v.text = shapeString, n.Value
	case *ast.LiteralNode:
		v.shape, v.text = shapeString, ""
		if n.Value != nil {
			v.text = n.Value.Value
		}
	case *ast.IntegerNode:
		v.shape = shapeInt
	case *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		v.shape = shapeFloat
	case *ast.BoolNode:
		v.shape = shapeBool
	default:
		p.badAt(v.at, path, "is not a value", "")
		v.broken = true
	}
}

// entries fills the map v: own keys first, then those that merge keys (<<) bring.
func (p *yamlParser) entries(v *value, nodes []*ast.MappingValueNode, path string, depth int) {
	seen := make(map[string]position, len(nodes))
	var merged []*value
	for _, n := range nodes {
		if n.Key == nil {
			continue
		}
		if n.Key.IsMergeKey() {
			merged = append(merged, p.value(n.Value, path, depth+1))
			continue
		}
		key, ok := p.key(n.Key, path)
		if !ok {
			continue
		}
		at := p.at(n.Key.GetToken())
		below := join(path, key)
		child := p.value(n.Value, below, depth+1)
		if first, twice := seen[key]; twice {
			p.badAt(at, below, "is given twice", fmt.Sprintf("the first is in line %d", first.line))
			continue
		}
		seen[key] = at
		v.entries = append(v.entries, entry{key: key, at: at, value: child})
	}
	p.merge(v, merged, seen, path)
}

func (p *yamlParser) merge(v *value, merged []*value, seen map[string]position, path string) {
	for len(merged) > 0 {
		from := merged[0]
		merged = merged[1:]
		if p.count += len(from.items) + len(from.entries); p.count > maxValues {
			p.badAt(from.at, path, fmt.Sprintf("is too much: %d values are the limit", maxValues), "")
			return
		}
		switch from.shape {
		case shapeList:
			merged = append(append([]*value{}, from.items...), merged...)
		case shapeMap:
			for _, e := range from.entries {
				if _, own := seen[e.key]; !own {
					seen[e.key] = e.at
					v.entries = append(v.entries, e)
				}
			}
		default:
			if from.broken {
				continue
			}
			p.badAt(from.at, path, "only a map can be merged with <<", "")
		}
	}
}

func (p *yamlParser) key(n ast.MapKeyNode, path string) (string, bool) {
	var node ast.Node = n
	if k, ok := n.(*ast.MappingKeyNode); ok {
		node = k.Value
	}
	if s, ok := node.(ast.ScalarNode); ok {
		v := &value{at: p.at(s.GetToken())}
		p.scalar(v, s, path)
		return v.text, !v.broken
	}
	p.badAt(p.at(n.GetToken()), path, "a key must be a plain word", "")
	return "", false
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
