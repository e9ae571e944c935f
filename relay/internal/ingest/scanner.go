package ingest

import (
	"bytes"
	"hash/maphash"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/hubrelay/hubrelay/relay"
)

// maxNesting is the maximum depth of nested objects and arrays, including the notification.
const maxNesting = 64

// fewMembers is the number of names in an object up to which a linear search is faster than a map.
const fewMembers = 16

// jsonScanner scans JSON (RFC 8259) in one pass. Beyond the grammar it rejects invalid UTF-8, duplicate names in
// an object, and deep nesting. If a method returns false, err is set; callers then return immediately and add
// their position to the path.
type jsonScanner struct {
	data []byte
	pos  int
	// lastSpace is the position of the last white space between tokens. Spans without white space are copied at once.
	lastSpace int
	depth     int
	// memberNames are the names of all open objects, to detect duplicates.
	memberNames [][]byte
	scratch     []byte
	err         scanError
}

// scanError is the reason why scanning stopped.
type scanError struct {
	code   relay.Code
	detail string
	pos    int
	// path is the path to the value, innermost first.
	path []string
}

// byteSpan is a part of jsonScanner.data without leading and trailing white space.
type byteSpan struct {
	start, end int
	hasSpaces  bool
}

func (s *jsonScanner) spanFrom(start int) byteSpan {
	return byteSpan{start: start, end: s.pos, hasSpaces: s.lastSpace >= start}
}

func (s *jsonScanner) syntaxError(detail string) bool {
	s.err = scanError{code: relay.CodeInvalidSyntax, detail: detail, pos: s.pos}
	return false
}

// valueError rejects JSON that receivers with common JSON libraries cannot read.
func (s *jsonScanner) valueError(detail string, pos int) bool {
	s.err = scanError{code: relay.CodeInvalidArgument, detail: detail, pos: pos}
	return false
}

func (s *jsonScanner) addPath(token string) bool {
	s.err.path = append(s.err.path, relay.Truncate(token, 256))
	return false
}

func (s *jsonScanner) skipSpaces() {
	if s.pos < len(s.data) && s.data[s.pos] <= ' ' {
		s.skipSpace()
	}
}

func (s *jsonScanner) skipSpace() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.lastSpace = s.pos
			s.pos++
		default:
			return
		}
	}
}

// peek returns the next byte. At the end it returns 0, which starts no token.
func (s *jsonScanner) peek() byte {
	if s.pos < len(s.data) {
		return s.data[s.pos]
	}
	return 0
}

// scanValue scans any value at pos.
func (s *jsonScanner) scanValue() bool {
	switch c := s.peek(); {
	case c == '"':
		_, ok := s.scanString()
		return ok
	case c == '{':
		return s.scanObject(nil)
	case c == '[':
		return s.scanArray(nil)
	case c == 't':
		return s.scanLiteral("true")
	case c == 'f':
		return s.scanLiteral("false")
	case c == 'n':
		return s.scanLiteral("null")
	case c == '-' || c >= '0' && c <= '9':
		return s.scanNumber()
	case s.pos >= len(s.data):
		return s.syntaxError("the text ends where a value is expected")
	case bytes.HasPrefix(s.data[s.pos:], []byte("\xef\xbb\xbf")):
		return s.syntaxError("a byte order mark is not allowed; send UTF-8 without it")
	default:
		return s.syntaxError("expected a value, found " + s.describeNext())
	}
}

// describeNext describes the character at pos for messages.
func (s *jsonScanner) describeNext() string {
	if s.pos >= len(s.data) {
		return "the end"
	}
	r, size := utf8.DecodeRune(s.data[s.pos:])
	if r == utf8.RuneError && size <= 1 {
		return "a byte that is not UTF-8"
	}
	return strconv.QuoteRune(r)
}

func (s *jsonScanner) scanLiteral(word string) bool {
	if !bytes.HasPrefix(s.data[s.pos:], []byte(word)) {
		return s.syntaxError("expected a value, found " + s.describeNext())
	}
	s.pos += len(word)
	return true
}

// maxPlainDigits is a number of digits that fits into a float64 without an exponent.
const maxPlainDigits = 300

// scanNumber scans a number. It rejects numbers beyond float64, which many receivers cannot read.
func (s *jsonScanner) scanNumber() bool {
	start := s.pos
	hasExponent, ok := s.scanNumberText()
	if !ok || !hasExponent && s.pos-start <= maxPlainDigits {
		return ok
	}
	if _, err := strconv.ParseFloat(string(s.data[start:s.pos]), 64); err != nil {
		return s.valueError("the number is too large for a 64-bit float; send it as a string", start)
	}
	return true
}

func (s *jsonScanner) scanNumberText() (hasExponent, ok bool) {
	if s.peek() == '-' {
		s.pos++
	}
	if s.peek() == '0' {
		s.pos++
	} else if !s.scanDigits() {
		return false, false
	}
	if s.peek() == '.' {
		s.pos++
		if !s.scanDigits() {
			return false, false
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.pos++
		if c := s.peek(); c == '+' || c == '-' {
			s.pos++
		}
		return true, s.scanDigits()
	}
	return false, true
}

func (s *jsonScanner) scanDigits() bool {
	start := s.pos
	for c := s.peek(); c >= '0' && c <= '9'; c = s.peek() {
		s.pos++
	}
	if s.pos == start {
		return s.syntaxError("expected a digit, found " + s.describeNext())
	}
	return true
}

// unicodeEscapeLen is the length of an escape such as \u00e9.
const unicodeEscapeLen = 6

// scanObject scans the object at pos. visit scans the value of each member; start is the position of its name. If
// visit is nil, any values are accepted.
func (s *jsonScanner) scanObject(visit func(name []byte, start int) bool) bool {
	if !s.pushLevel() {
		return false
	}
	if s.peek() == '}' {
		return s.popLevel()
	}
	base, names := len(s.memberNames), duplicateNames{}
	for {
		start := s.pos
		name, ok := s.scanName()
		if !ok {
			return false
		}
		if names.checkDuplicate(s.memberNames[base:], name) {
			s.err = scanError{
				code: relay.CodeInvalidArgument, detail: "the member stands twice in one object; send it once",
				pos: start,
			}
			return s.addPath(string(name))
		}
		s.memberNames = append(s.memberNames, name)
		if visit == nil {
			ok = s.scanValue()
		} else {
			ok = visit(name, start)
		}
		if !ok {
			return s.addPath(string(name))
		}
		s.skipSpaces()
		switch s.peek() {
		case ',':
			s.pos++
			s.skipSpaces()
		case '}':
			s.memberNames = s.memberNames[:base]
			return s.popLevel()
		default:
			return s.syntaxError("expected ',' or '}' after a member, found " + s.describeNext())
		}
	}
}

// scanName scans the name of a member with its colon, and stops at the value.
func (s *jsonScanner) scanName() ([]byte, bool) {
	if s.peek() != '"' {
		return nil, s.syntaxError("expected a member's name in double quotes, found " + s.describeNext())
	}
	t, ok := s.scanString()
	if !ok {
		return nil, false
	}
	name, ok := s.unescapeString(t)
	if !ok {
		return nil, s.syntaxError("a member's name has half of a surrogate pair")
	}
	s.skipSpaces()
	if s.peek() != ':' {
		return nil, s.syntaxError("expected ':' after a member's name, found " + s.describeNext())
	}
	s.pos++
	s.skipSpaces()
	return name, true
}

// scanArray scans the array at pos. visit scans each element. If visit is nil, any values are accepted.
func (s *jsonScanner) scanArray(visit func(index int) bool) bool {
	if !s.pushLevel() {
		return false
	}
	if s.peek() == ']' {
		return s.popLevel()
	}
	for i := 0; ; i++ {
		var ok bool
		if visit == nil {
			ok = s.scanValue()
		} else {
			ok = visit(i)
		}
		if !ok {
			return s.addPath(strconv.Itoa(i))
		}
		s.skipSpaces()
		switch s.peek() {
		case ',':
			s.pos++
			s.skipSpaces()
		case ']':
			return s.popLevel()
		default:
			return s.syntaxError("expected ',' or ']' after an element, found " + s.describeNext())
		}
	}
}

func (s *jsonScanner) pushLevel() bool {
	if s.depth == maxNesting {
		return s.syntaxError("objects and arrays are nested deeper than " + strconv.Itoa(maxNesting))
	}
	s.depth++
	s.pos++
	s.skipSpaces()
	return true
}

func (s *jsonScanner) popLevel() bool {
	s.depth--
	s.pos++
	return true
}

// nameSeed makes the hashes of names unpredictable.
var nameSeed = maphash.MakeSeed()

// duplicateNames detects duplicate names. Its cost is linear even for a hostile object.
type duplicateNames struct {
	mask uint64
	seen map[uint64]struct{} // hashes
}

// checkDuplicate reports whether name occurred before, and records it.
func (n *duplicateNames) checkDuplicate(before [][]byte, name []byte) bool {
	if n.seen != nil {
		hash := maphash.Bytes(nameSeed, name)
		_, found := n.seen[hash]
		n.seen[hash] = struct{}{}
		return found && containsName(before, name)
	}
	bit := uint64(1)
	if len(name) > 0 {
		bit <<= (uint(len(name)) + 7*uint(name[0]) + 3*uint(name[len(name)-1])) % 64
	}
	if n.mask&bit != 0 && containsName(before, name) {
		return true
	}
	n.mask |= bit
	if len(before) >= fewMembers {
		n.seen = make(map[uint64]struct{}, 4*fewMembers)
		for _, b := range before {
			n.seen[maphash.Bytes(nameSeed, b)] = struct{}{}
		}
		n.seen[maphash.Bytes(nameSeed, name)] = struct{}{}
	}
	return false
}

func containsName(names [][]byte, name []byte) bool {
	return slices.ContainsFunc(names, func(b []byte) bool { return bytes.Equal(b, name) })
}
