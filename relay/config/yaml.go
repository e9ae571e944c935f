package config

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds of a configuration file; no real one comes near. The parser's time grows with the square of the keys of one
// map, so the tokens are bounded before it runs (4,000 sinks of 15 keys each fit).
const (
	maxFile   = 10 << 20
	maxTokens = 200_000
	maxDepth  = 32
	maxValues = 200_000
)

// shape is what a YAML value is before the schema has its say.
type shape int

const (
	shapeNull shape = iota
	shapeString
	shapeInt
	shapeFloat
	shapeBool
	shapeList
	shapeMap
)

func (s shape) String() string {
	return [...]string{"nothing", "a string", "a number", "a number", "true or false", "a list", "a map"}[s]
}

// value is one YAML value with its position. Aliases share values, so nobody changes one.
type value struct {
	shape   shape
	broken  bool   // reported already
	text    string // of a scalar, as written, quotes and escapes resolved
	at      position
	items   []*value
	entries []entry
}

// entry is one key of a map.
type entry struct {
	key   string
	at    position
	value *value
}

func (v *value) entry(key string) (entry, bool) {
	for _, e := range v.entries {
		if e.key == key {
			return e, true
		}
	}
	return entry{}, false
}

// readFile reads and parses the file; it reports what is wrong and then returns nil.
func (r *reporter) readFile(path string) *value {
	data, err := readBounded(path, maxFile)
	if err != nil {
		r.badAt(position{}, "", "cannot be read: "+reason(err), "name a configuration file with -c, or begin with a copy of configs/minimal.yaml")
		return nil
	}
	return r.parse(data, position{line: 1, column: 1})
}

// parse parses one YAML document. origin is the position to report for what has no line of its own; a position with a
// variable stands for all of the document.
func (r *reporter) parse(data []byte, origin position) *value {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if at, ok := invalidText(data); !ok {
		r.badAt(origin.within(at), "", "is not UTF-8 text", "save the file as UTF-8")
		return nil
	}
	p := &yamlParser{reporter: r, origin: origin, anchors: map[string]*value{}}
	file := p.syntax(string(data))
	if file == nil {
		return nil
	}
	var root *value
	for _, doc := range file.Docs {
		if _, directive := doc.Body.(*ast.DirectiveNode); directive || doc.Body == nil {
			continue
		}
		if root != nil {
			r.badAt(p.at(firstToken(doc.Body)), "", "a second YAML document begins here", "keep one document in the file")
			break
		}
		root = p.value(doc.Body, "", 0)
	}
	if root == nil {
		root = &value{shape: shapeNull, at: origin}
	}
	return root
}

// within returns at, or the origin itself where that is an environment variable.
func (p position) within(at position) position {
	if p.variable != "" {
		return p
	}
	return at
}

func invalidText(data []byte) (position, bool) {
	if utf8.Valid(data) {
		return position{}, true
	}
	at := position{line: 1, column: 1}
	for len(data) > 0 {
		c, size := utf8.DecodeRune(data)
		if c == utf8.RuneError && size == 1 {
			break
		}
		if at.column++; c == '\n' {
			at = position{line: at.line + 1, column: 1}
		}
		data = data[size:]
	}
	return at, false
}

// yamlParser turns the syntax tree into values.
type yamlParser struct {
	*reporter
	origin  position
	anchors map[string]*value
	count   int
}

func (p *yamlParser) at(t *token.Token) position {
	if t == nil || t.Position == nil {
		return p.origin
	}
	return p.origin.within(position{line: max(1, t.Position.Line), column: max(1, t.Position.Column)})
}

// syntax parses text. Nesting is bounded before the parser, which recurses, sees it; the recover is there because the
// parser is somebody else's and a configuration file must not crash the daemon.
func (p *yamlParser) syntax(text string) (file *ast.File) {
	defer func() {
		if bad := recover(); bad != nil {
			p.badAt(p.origin, "", "is not valid YAML", "")
			file = nil
		}
	}()
	tokens := lexer.Tokenize(text)
	if len(tokens) > maxTokens {
		p.badAt(p.at(tokens[maxTokens]), "", fmt.Sprintf("is longer than %d words and marks", maxTokens), "")
		return nil
	}
	if t := tooDeep(tokens); t != nil {
		p.badAt(p.at(t), "", fmt.Sprintf("is nested more than %d levels deep", maxDepth), "")
		return nil
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		p.syntaxError(text, err)
		return nil
	}
	return file
}

// tooDeep returns the token where nesting exceeds the bound, if one does.
func tooDeep(tokens token.Tokens) *token.Token {
	flow, run, line := 0, 0, 0
	for _, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow--
		case token.SequenceEntryType, token.MappingKeyType: // "- - - x" nests without indentation
			if t.Position.Line != line {
				run, line = 0, t.Position.Line
			}
			run++
		}
		if flow > maxDepth || run > maxDepth || t.Position.IndentLevel > maxDepth {
			return t
		}
	}
	return nil
}

func (p *yamlParser) syntaxError(text string, err error) {
	at, message := p.origin, err.Error()
	var ye yaml.Error
	if errors.As(err, &ye) {
		at, message = p.at(ye.GetToken()), ye.GetMessage()
	}
	hint := ""
	lines := strings.Split(text, "\n")
	if at.line >= 1 && at.line <= len(lines) {
		line := lines[at.line-1]
		if indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]; strings.Contains(indent, "\t") {
			message, hint = "the line begins with a tab", "YAML is indented with spaces"
		}
	}
	message, _, _ = strings.Cut(message, "\n")
	p.badAt(at, "", "is not valid YAML: "+message, hint)
}

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
		p.badAt(v.at, path, "tags such as "+n.GetToken().Value+" have no meaning here", "leave the tag out")
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
		p.badAt(v.at, path, fmt.Sprintf("there is no anchor %q above", name), "")
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
		v := &value{}
		p.scalar(v, s, path)
		return v.text, true
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

// reason says why a file could not be opened, without repeating its name.
func reason(err error) string {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}
