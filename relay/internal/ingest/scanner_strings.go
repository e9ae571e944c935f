package ingest

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// rawString is the content of a string as it is in the data.
type rawString struct {
	raw     []byte
	escaped bool
}

// scanString scans the string at pos, which starts with a quote.
func (s *jsonScanner) scanString() (rawString, bool) {
	d, start := s.data, s.pos+1
	escaped := false
	for i := start; ; {
		i = skipPlain(d, i)
		if i >= len(d) {
			s.pos = len(d)
			return rawString{}, s.syntaxError("a string is not closed")
		}
		switch c := d[i]; {
		case c == '"':
			s.pos = i + 1
			return rawString{raw: d[start:i], escaped: escaped}, true
		case c == '\\':
			escaped = true
			n := escapeLen(d[i:])
			if n == 0 {
				s.pos = i
				return rawString{}, s.syntaxError("a string has an unknown escape")
			}
			if n == unicodeEscapeLen {
				var problem string
				if n, problem = checkUnicodeEscape(d[i:]); problem != "" {
					return rawString{}, s.valueError(problem, i)
				}
			}
			i += n
		case c < ' ':
			s.pos = i
			return rawString{}, s.syntaxError("a string has an unescaped control character")
		default:
			r, size := utf8.DecodeRune(d[i:])
			if r == utf8.RuneError && size <= 1 {
				s.pos = i
				return rawString{}, s.syntaxError("a string is not valid UTF-8")
			}
			i += size
		}
	}
}

// skipPlain returns the first position from i with a quote, a backslash, a control character or a non-ASCII byte.
func skipPlain(d []byte, i int) int {
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

// checkUnicodeEscape returns the length of the escape at the start of d, which is twice as long for a pair of
// surrogates, or what is wrong with it. Receivers cannot store NUL in PostgreSQL, or a surrogate in UTF-8.
func checkUnicodeEscape(d []byte) (n int, problem string) {
	const lone = "a string has half of a surrogate pair; send the complete pair or the character itself"
	r, _ := hex4(d)
	switch {
	case r == 0:
		return 0, "a string has the character NUL; remove it"
	case !utf16.IsSurrogate(r):
		return unicodeEscapeLen, ""
	}
	if low, ok := hex4(d[unicodeEscapeLen:]); !ok || utf16.DecodeRune(r, low) == utf8.RuneError {
		return 0, lone
	}
	return 2 * unicodeEscapeLen, ""
}

// escapeLen returns the length of the escape at the start of d, or 0.
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
