package ingest

import (
	"encoding/json"
	"unicode/utf16"
	"unicode/utf8"
)

// unescapeString returns t without escapes. It returns false for half of a surrogate pair. The result is valid
// until the next reset.
func (s *jsonScanner) unescapeString(t rawString) ([]byte, bool) {
	if !t.escaped {
		return t.raw, true
	}
	start := len(s.scratch)
	for d := t.raw; len(d) > 0; {
		if d[0] != '\\' {
			s.scratch = append(s.scratch, d[0])
			d = d[1:]
			continue
		}
		if d[1] != 'u' {
			s.scratch = append(s.scratch, unescapeByte(d[1]))
			d = d[2:]
			continue
		}
		r, _ := hex4(d)
		d = d[6:]
		if utf16.IsSurrogate(r) {
			low, ok := hex4(d)
			if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
				return nil, false
			}
			d = d[6:]
		}
		s.scratch = utf8.AppendRune(s.scratch, r)
	}
	return s.scratch[start:len(s.scratch):len(s.scratch)], true
}

func unescapeByte(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	default:
		return c
	}
}

// hex4 decodes the \uXXXX at the start of d.
func hex4(d []byte) (rune, bool) {
	if len(d) < 6 || d[0] != '\\' || d[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range d[2:6] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// appendCompact appends valid JSON without white space between tokens.
func appendCompact(dst, src []byte) []byte {
	for i := 0; i < len(src); {
		switch c := src[i]; c {
		case ' ', '\t', '\n', '\r':
			i++
		case '"':
			start := i
			for i++; src[i] != '"'; i++ {
				if src[i] == '\\' {
					i++
				}
			}
			i++
			dst = append(dst, src[start:i]...)
		default:
			dst = append(dst, c)
			i++
		}
	}
	return dst
}

// appendQuoted appends s as a JSON string.
func appendQuoted(dst []byte, s string) []byte {
	if skipPlain([]byte(s), 0) == len(s) {
		dst = append(dst, '"')
		dst = append(dst, s...)
		return append(dst, '"')
	}
	quoted, err := json.Marshal(s)
	if err != nil { // never for a string
		return append(dst, `""`...)
	}
	return append(dst, quoted...)
}
