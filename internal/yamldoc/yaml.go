// Package yamldoc reads YAML that people write. Every value has a position, and all errors are reported at once
// with file, line, problem and advice.
//
// The callers interpret the values. Only this package uses the YAML library. It starts no goroutines.
package yamldoc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Limits of a document, far above the size of any real document. The parser takes quadratic time in the number of
// keys of a map, so the number of tokens is checked before parsing. 4,000 sinks with 15 keys each fit.
const (
	MaxSize   = 10 << 20 // in bytes
	maxTokens = 200_000
	maxDepth  = 32
	MaxValues = 200_000
)

// Shape is the form of a YAML value, independent of a schema.
type Shape int

// The shapes of a value.
const (
	Null Shape = iota
	String
	Int
	Float
	Bool
	List
	Map
)

// String returns the name of the shape for messages.
func (s Shape) String() string {
	return [...]string{"nothing", "a string", "a number", "a number", "true or false", "a list", "a map"}[s]
}

// Value is one YAML value with its position. Aliases share values, so values must not be modified.
type Value struct {
	Shape   Shape
	Invalid bool   // already reported
	Text    string // text of a scalar, with quotes and escapes resolved
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

// Entry returns the entry of a map with the given key.
func (v *Value) Entry(key string) (Entry, bool) {
	for _, e := range v.Entries {
		if e.Key == key {
			return e, true
		}
	}
	return Entry{}, false
}

// Read reads and parses a file. If it fails, it reports the error and returns nil. hint is the advice for a file that
// cannot be read.
func (r *Reporter) Read(path, hint string) *Value {
	data, err := ReadBounded(path, MaxSize)
	if err != nil {
		r.ErrorAt(Position{}, "", "cannot be read: "+OpenErrorReason(err), hint)
		return nil
	}
	return r.Parse(data, Position{Line: 1, Column: 1})
}

// Parse parses one YAML document. JSON is valid too. If it fails, it reports the error and returns nil. origin is
// the position of values without a line. If it has a variable, all positions are this variable.
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
			r.ErrorAt(p.positionOf(firstToken(doc.Body)), "", "a second YAML document starts here",
				"keep one document in the file")
			break
		}
		root = p.convertNode(doc.Body, "", 0)
	}
	if root == nil {
		root = &Value{Shape: Null, At: origin}
	}
	return root
}

// orOrigin returns pos, or p if p is an environment variable.
func (p Position) orOrigin(pos Position) Position {
	if p.Variable != "" {
		return p
	}
	return pos
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

// yamlParser converts a syntax tree into values.
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

// parseSyntax parses text. The nesting depth is checked first, because the parser is recursive. It recovers from
// panics of the parser, because a configuration file must not crash the daemon.
func (p *yamlParser) parseSyntax(text string) (file *ast.File) {
	defer func() {
		if r := recover(); r != nil {
			p.ErrorAt(p.origin, "", "is not valid YAML", "")
			file = nil
		}
	}()
	tokens := lexer.Tokenize(text)
	if len(tokens) > maxTokens {
		p.ErrorAt(p.positionOf(tokens[maxTokens]), "", fmt.Sprintf("has more than %d tokens", maxTokens), "")
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

// deepestToken returns the token that exceeds the limit of nesting, or nil. It counts indentation itself, because
// the level of the lexer also increases with each comment that is less indented than the previous line.
func deepestToken(tokens token.Tokens) *token.Token {
	flow, run, line, current := 0, 0, 0, 0
	var indents []int // of the enclosing lines
	for _, t := range tokens {
		if t.Type != token.CommentType && t.Position.Line != current {
			current = t.Position.Line
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
		if hint == "" && strings.Contains(message, "value is not allowed in this context") {
			hint = "check the indentation of this line and of the lines above"
		}
		if at.Line >= 2 && hint == "" && strings.HasSuffix(strings.TrimSpace(lines[at.Line-2]), " *") {
			hint = quoteStar // a lone * uses the next word as its name
		}
	}
	if strings.Contains(message, "invalid header option") { // the parser repeats it, and it may be a secret
		message, hint = "there is text after | or >", "put text that begins with | or > between quotes"
	}
	message, _, _ = strings.Cut(message, "\n")
	p.ErrorAt(at, "", "is not valid YAML: "+message, hint)
}

// Hints for common patterns and for ${NAME}, which YAML interprets differently.
const (
	quoteStar      = `text that begins with * needs quotes, such as "*.error"`
	quoteExclusion = `text that begins with ! needs quotes, such as "!*.error"`
	quoteVariable  = "put ${NAME} between quotes inside { } and [ ]"
	quoteWhole     = "text that begins with a quoted part needs quotes around the whole text: " +
		"'\"production\" in context.clusters'"
)

// missingQuoteHint guesses from an invalid line which quotes are missing.
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

// ReadBounded reads a file of at most limit bytes, which may be a pipe. limit is a whole number of MiB. In a running relay, use
// [filewatch.ReadFile], which does not wait for a pipe.
func ReadBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	err = errors.Join(err, f.Close())
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("it is larger than %dMiB", limit>>20)
	}
	return data, err
}

// OpenErrorReason returns the reason of an error of os.Open, without the file name.
func OpenErrorReason(err error) string {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}
