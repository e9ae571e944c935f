package ingest

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"strconv"
	"unicode/utf8"

	"github.com/hubrelay/hubrelay/relay"
)

// maxNesting bounds objects and arrays inside each other, the notification itself included.
const maxNesting = 64

// fewMembers is how many names of one object are compared one by one before a map takes over.
const fewMembers = 16

// scanner reads JSON (RFC 8259) in a single pass and refuses, beyond the grammar, invalid UTF-8, names that appear
// twice in an object, and deep nesting. Its methods return false once fault is set; callers then return at once, each
// adding its place to the path.
type scanner struct {
	data []byte
	pos  int
	// lastSpace is where the last white space between tokens was seen, so that clean spans are copied whole.
	lastSpace int
	depth     int
	// names holds those of all open objects, for the search for doubles.
	names   [][]byte
	scratch []byte
	fault   fault
}

// fault is why scanning stopped.
type fault struct {
	code   relay.Code
	detail string
	pos    int
	// path leads to the value, innermost first.
	path []string
}

// span is a part of scanner.data without leading and trailing white space.
type span struct {
	start, end int
	spaced     bool
}

func (s *scanner) spanFrom(start int) span {
	return span{start: start, end: s.pos, spaced: s.lastSpace >= start}
}

func (s *scanner) syntax(detail string) bool {
	s.fault = fault{code: relay.CodeInvalidSyntax, detail: detail, pos: s.pos}
	return false
}

func (s *scanner) inside(token string) bool {
	s.fault.path = append(s.fault.path, relay.Clip(token, 256))
	return false
}

func (s *scanner) space() {
	if s.pos < len(s.data) && s.data[s.pos] <= ' ' {
		s.skipSpace()
	}
}

func (s *scanner) skipSpace() {
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

// peek returns the next byte, or 0 at the end, which begins no token either.
func (s *scanner) peek() byte {
	if s.pos < len(s.data) {
		return s.data[s.pos]
	}
	return 0
}

// value reads any value at pos.
func (s *scanner) value() bool {
	switch c := s.peek(); {
	case c == '"':
		_, ok := s.str()
		return ok
	case c == '{':
		return s.members(nil)
	case c == '[':
		return s.elements(nil)
	case c == 't':
		return s.literal("true")
	case c == 'f':
		return s.literal("false")
	case c == 'n':
		return s.literal("null")
	case c == '-' || c >= '0' && c <= '9':
		return s.number()
	case s.pos >= len(s.data):
		return s.syntax("the text ends where a value is expected")
	case bytes.HasPrefix(s.data[s.pos:], []byte("\xef\xbb\xbf")):
		return s.syntax("a byte order mark is not allowed; send UTF-8 without it")
	default:
		return s.syntax("expected a value, found " + s.found())
	}
}

// found names what stands at pos, for messages.
func (s *scanner) found() string {
	if s.pos >= len(s.data) {
		return "the end"
	}
	r, size := utf8.DecodeRune(s.data[s.pos:])
	if r == utf8.RuneError && size <= 1 {
		return "a byte that is no UTF-8"
	}
	return strconv.QuoteRune(r)
}

func (s *scanner) literal(word string) bool {
	if !bytes.HasPrefix(s.data[s.pos:], []byte(word)) {
		return s.syntax("expected " + word)
	}
	s.pos += len(word)
	return true
}

func (s *scanner) number() bool {
	if s.peek() == '-' {
		s.pos++
	}
	if s.peek() == '0' {
		s.pos++
	} else if !s.digits() {
		return false
	}
	if s.peek() == '.' {
		s.pos++
		if !s.digits() {
			return false
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.pos++
		if c := s.peek(); c == '+' || c == '-' {
			s.pos++
		}
		return s.digits()
	}
	return true
}

func (s *scanner) digits() bool {
	start := s.pos
	for c := s.peek(); c >= '0' && c <= '9'; c = s.peek() {
		s.pos++
	}
	if s.pos == start {
		return s.syntax("expected a digit, found " + s.found())
	}
	return true
}

// text is the inside of a string as it stands in the data.
type text struct {
	raw     []byte
	escaped bool
}

// str reads the string at pos, which begins with a quote.
func (s *scanner) str() (text, bool) {
	d, start := s.data, s.pos+1
	escaped := false
	for i := start; ; {
		i = plainRun(d, i)
		if i >= len(d) {
			s.pos = len(d)
			return text{}, s.syntax("a string is not closed")
		}
		switch c := d[i]; {
		case c == '"':
			s.pos = i + 1
			return text{raw: d[start:i], escaped: escaped}, true
		case c == '\\':
			escaped = true
			n := escapeLen(d[i:])
			if n == 0 {
				s.pos = i
				return text{}, s.syntax("a string has an escape that JSON does not know")
			}
			i += n
		case c < ' ':
			s.pos = i
			return text{}, s.syntax("a string has a control character that is not escaped")
		default:
			r, size := utf8.DecodeRune(d[i:])
			if r == utf8.RuneError && size <= 1 {
				s.pos = i
				return text{}, s.syntax("a string is not valid UTF-8")
			}
			i += size
		}
	}
}

// plainRun returns the first place from i where d has a quote, a backslash, a control character or something that is
// not ASCII. It looks at eight bytes at a time: a subtraction borrows into the top bit of a byte that is too small.
func plainRun(d []byte, i int) int {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	for ; i+8 <= len(d); i += 8 {
		x := binary.LittleEndian.Uint64(d[i:])
		hit := (x | (x - ones*' ') | ((x ^ ones*'"') - ones) | ((x ^ ones*'\\') - ones)) & tops
		if hit != 0 {
			return i + bits.TrailingZeros64(hit)/8
		}
	}
	for i < len(d) && d[i] >= ' ' && d[i] != '"' && d[i] != '\\' && d[i] < utf8.RuneSelf {
		i++
	}
	return i
}

// escapeLen returns the length of the escape that d begins with, or 0 for none.
func escapeLen(d []byte) int {
	if len(d) < 2 {
		return 0
	}
	switch d[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if _, ok := hex4(d); ok {
			return 6
		}
	}
	return 0
}

// members reads the object at pos. visit reads the value of each member; start is where the member's name begins. A
// nil visit takes any value.
func (s *scanner) members(visit func(name []byte, start int) bool) bool {
	if !s.enter() {
		return false
	}
	if s.peek() == '}' {
		return s.leave()
	}
	base, names := len(s.names), nameSet{}
	for {
		start := s.pos
		name, ok := s.name()
		if !ok {
			return false
		}
		if names.has(s.names[base:], name) {
			s.fault = fault{code: relay.CodeInvalidArgument, detail: "the member stands twice in one object; send it once", pos: start}
			return s.inside(string(name))
		}
		s.names = append(s.names, name)
		if visit == nil {
			ok = s.value()
		} else {
			ok = visit(name, start)
		}
		if !ok {
			return s.inside(string(name))
		}
		s.space()
		switch s.peek() {
		case ',':
			s.pos++
			s.space()
		case '}':
			s.names = s.names[:base]
			return s.leave()
		default:
			return s.syntax("expected ',' or '}' behind a member, found " + s.found())
		}
	}
}

// name reads a member's name with its colon and stops at the value.
func (s *scanner) name() ([]byte, bool) {
	if s.peek() != '"' {
		return nil, s.syntax("expected a member's name in double quotes, found " + s.found())
	}
	t, ok := s.str()
	if !ok {
		return nil, false
	}
	name, ok := s.decoded(t)
	if !ok {
		return nil, s.syntax("a member's name has half of a surrogate pair")
	}
	s.space()
	if s.peek() != ':' {
		return nil, s.syntax("expected ':' behind a member's name, found " + s.found())
	}
	s.pos++
	s.space()
	return name, true
}

// elements reads the array at pos. visit reads each element; a nil visit takes any value.
func (s *scanner) elements(visit func(index int) bool) bool {
	if !s.enter() {
		return false
	}
	if s.peek() == ']' {
		return s.leave()
	}
	for i := 0; ; i++ {
		var ok bool
		if visit == nil {
			ok = s.value()
		} else {
			ok = visit(i)
		}
		if !ok {
			return s.inside(strconv.Itoa(i))
		}
		s.space()
		switch s.peek() {
		case ',':
			s.pos++
			s.space()
		case ']':
			return s.leave()
		default:
			return s.syntax("expected ',' or ']' behind an element, found " + s.found())
		}
	}
}

func (s *scanner) enter() bool {
	if s.depth == maxNesting {
		return s.syntax("objects and arrays are nested deeper than " + strconv.Itoa(maxNesting))
	}
	s.depth++
	s.pos++
	s.space()
	return true
}

func (s *scanner) leave() bool {
	s.depth--
	s.pos++
	return true
}

// nameSet finds names that appear twice. Its cost stays linear however many names a hostile object has.
type nameSet struct {
	mask uint64
	many map[string]struct{}
}

// has reports whether name is among those before it, and remembers it.
func (n *nameSet) has(before [][]byte, name []byte) bool {
	if n.many != nil {
		_, found := n.many[string(name)]
		n.many[string(name)] = struct{}{}
		return found
	}
	bit := uint64(1)
	if len(name) > 0 {
		bit <<= (uint(len(name)) + 7*uint(name[0]) + 3*uint(name[len(name)-1])) % 64
	}
	if n.mask&bit != 0 {
		for _, b := range before {
			if bytes.Equal(b, name) {
				return true
			}
		}
	}
	n.mask |= bit
	if len(before) >= fewMembers {
		n.many = make(map[string]struct{}, 4*fewMembers)
		for _, b := range before {
			n.many[string(b)] = struct{}{}
		}
		n.many[string(name)] = struct{}{}
	}
	return false
}
