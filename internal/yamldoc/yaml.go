package yamldoc

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds of a document; no real one comes near. The parser's time grows with the square of the keys of one
// map, so the tokens are bounded before it runs (4,000 sinks of 15 keys each fit).
const (
	MaxSize   = 10 << 20 // in bytes
	maxTokens = 200_000
	maxDepth  = 32
	MaxValues = 200_000
)

// Shape is what a YAML value is before the schema has its say.
type Shape int

// What a value may be.
const (
	Null Shape = iota
	String
	Int
	Float
	Bool
	List
	Map
)

// String is how a message names it.
func (s Shape) String() string {
	return [...]string{"nothing", "a string", "a number", "a number", "true or false", "a list", "a map"}[s]
}

// Value is one YAML value with its position. Aliases share values, so nobody changes one.
type Value struct {
	Shape   Shape
	Invalid bool   // reported already
	Text    string // of a scalar, as written, quotes and escapes resolved
	At      Position
	Items   []*Value
	Entries []Entry
}

// Entry is one key of a map.
type Entry struct {
	Key   string
	At    Position
	Value *Value
}

// Entry returns the entry of a map with that key.
func (v *Value) Entry(key string) (Entry, bool) {
	for _, e := range v.Entries {
		if e.Key == key {
			return e, true
		}
	}
	return Entry{}, false
}

// Read reads and parses the file; it reports what is wrong and then returns nil. Hint is for a file that cannot be read.
func (r *Reporter) Read(path, hint string) *Value {
	data, err := ReadBounded(path, MaxSize)
	if err != nil {
		r.ErrorAt(Position{}, "", "cannot be read: "+OpenErrorReason(err), hint)
		return nil
	}
	return r.Parse(data, Position{Line: 1, Column: 1})
}

// Parse parses one YAML document, which JSON is too, and returns nil for one that is none. Origin is the position to
// report for what has no line of its own; a position with a variable stands for all of the document.
func (r *Reporter) Parse(data []byte, origin Position) *Value {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if at, ok := invalidText(data); !ok {
		r.ErrorAt(origin.orOrigin(at), "", "is not UTF-8 text", "save the file as UTF-8")
		return nil
	}
	p := &yamlParser{Reporter: r, origin: origin, anchors: map[string]*Value{}}
	file := p.parseSyntax(string(data))
	if file == nil {
		return nil
	}
	var root *Value
	for _, doc := range file.Docs {
		if _, directive := doc.Body.(*ast.DirectiveNode); directive || doc.Body == nil {
			continue
		}
		if root != nil {
			r.ErrorAt(p.positionOf(firstToken(doc.Body)), "", "a second YAML document begins here", "keep one document in the file")
			break
		}
		root = p.convertNode(doc.Body, "", 0)
	}
	if root == nil {
		root = &Value{Shape: Null, At: origin}
	}
	return root
}

// orOrigin returns at, or the origin itself where that is an environment variable.
func (p Position) orOrigin(at Position) Position {
	if p.Variable != "" {
		return p
	}
	return at
}

func invalidText(data []byte) (Position, bool) {
	if utf8.Valid(data) {
		return Position{}, true
	}
	at := Position{Line: 1, Column: 1}
	for len(data) > 0 {
		c, size := utf8.DecodeRune(data)
		if c == utf8.RuneError && size == 1 {
			break
		}
		if at.Column++; c == '\n' {
			at = Position{Line: at.Line + 1, Column: 1}
		}
		data = data[size:]
	}
	return at, false
}

// yamlParser turns the syntax tree into values.
type yamlParser struct {
	*Reporter
	origin  Position
	anchors map[string]*Value
	count   int
}

func (p *yamlParser) positionOf(t *token.Token) Position {
	if t == nil || t.Position == nil {
		return p.origin
	}
	return p.origin.orOrigin(Position{Line: max(1, t.Position.Line), Column: max(1, t.Position.Column)})
}

// parseSyntax parses text. Nesting is bounded before the parser, which recurses, sees it; the recover is there because the
// parser is somebody else's and a configuration file must not crash the daemon.
func (p *yamlParser) parseSyntax(text string) (file *ast.File) {
	defer func() {
		if bad := recover(); bad != nil {
			p.ErrorAt(p.origin, "", "is not valid YAML", "")
			file = nil
		}
	}()
	tokens := lexer.Tokenize(text)
	if len(tokens) > maxTokens {
		p.ErrorAt(p.positionOf(tokens[maxTokens]), "", fmt.Sprintf("is longer than %d words and marks", maxTokens), "")
		return nil
	}
	if t := deepestToken(tokens); t != nil {
		p.ErrorAt(p.positionOf(t), "", fmt.Sprintf("is nested more than %d levels deep", maxDepth), "")
		return nil
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		p.syntaxError(text, err)
		return nil
	}
	return file
}

// deepestToken returns the token where nesting exceeds the bound, if one does. It counts indentation itself, because the
// lexer's own level also grows with every comment that stands to the left of what came before.
func deepestToken(tokens token.Tokens) *token.Token {
	flow, run, line, begun := 0, 0, 0, 0
	var indents []int // of the lines that are open
	for _, t := range tokens {
		if t.Type != token.CommentType && t.Position.Line != begun {
			begun = t.Position.Line
			for len(indents) > 0 && indents[len(indents)-1] >= t.Position.Column {
				indents = indents[:len(indents)-1]
			}
			indents = append(indents, t.Position.Column)
		}
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
		if flow > maxDepth || run > maxDepth || len(indents) > maxDepth {
			return t
		}
	}
	return nil
}

func (p *yamlParser) syntaxError(text string, err error) {
	at, message := p.origin, err.Error()
	var ye yaml.Error
	if errors.As(err, &ye) {
		at, message = p.positionOf(ye.GetToken()), ye.GetMessage()
	}
	hint := ""
	lines := strings.Split(text, "\n")
	if at.Line >= 1 && at.Line <= len(lines) {
		line := lines[at.Line-1]
		if indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]; strings.Contains(indent, "\t") {
			message, hint = "the line begins with a tab", "YAML is indented with spaces"
		} else {
			hint = missingQuoteHint(line)
		}
		if at.Line >= 2 && hint == "" && strings.HasSuffix(strings.TrimSpace(lines[at.Line-2]), " *") {
			hint = quoteStar // a lone * takes what follows it for its name
		}
	}
	message, _, _ = strings.Cut(message, "\n")
	p.ErrorAt(at, "", "is not valid YAML: "+message, hint)
}

// What YAML makes of the most common patterns and of ${NAME} is not what their author meant.
const (
	quoteStar      = `text that begins with * needs quotes, such as "*.error"`
	quoteExclusion = `text that begins with ! needs quotes, such as "!*.error"`
	quoteVariable  = "put ${NAME} between quotes inside { } and [ ]"
	quoteWhole     = "text that begins with a quoted part needs quotes around all of it: '\"production\" in context.clusters'"
)

// missingQuoteHint guesses from a line that is not YAML which quotes are missing, if any.
func missingQuoteHint(line string) string {
	switch {
	case regexp.MustCompile(`[-:,[]\s*\*`).MatchString(line):
		return quoteStar
	case regexp.MustCompile(`[-:,[]\s*!`).MatchString(line):
		return quoteExclusion
	case regexp.MustCompile(`[{[].*[:,[]\s*\$\{`).MatchString(line):
		return quoteVariable
	case regexp.MustCompile(`:\s+("[^"]*"|'[^']*')\s+[^\s#,}]`).MatchString(line):
		return quoteWhole
	}
	return ""
}
