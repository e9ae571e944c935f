package transport

import (
	"net/http"
	"strings"
)

// The extension permessage-deflate (RFC 7692). Messages are compressed independently in both directions, so no side
// stores earlier messages.
const (
	deflateName     = "permessage-deflate"
	deflateResponse = deflateName + "; server_no_context_takeover; client_no_context_takeover"
	// deflateWindow is the window size of compress/flate in bits. It supports no other.
	deflateWindow = "15"
)

// extensionHeader is deliberately not the canonical key. Gorilla rejects that in response headers, but its own
// negotiation cannot return server_max_window_bits.
const extensionHeader = "Sec-WebSocket-Extensions"

// extensionOffer is one extension that a client offers, with its parameters.
type extensionOffer struct {
	name   string
	params []parameter
}

type parameter struct {
	name, value string
	valued      bool // has a value
}

// AcceptDeflate returns the response to the first acceptable offer of permessage-deflate, or "". An invalid header is
// ignored: RFC 6455, section 9.1, lets the handshake fail, but the stream works without the extension, and without
// compression the header is never parsed.
func AcceptDeflate(header http.Header) string {
	offers, ok := parseOffers(strings.Join(header.Values(extensionHeader), ","))
	if !ok {
		return ""
	}
	for _, o := range offers {
		if response := o.acceptDeflate(); response != "" {
			return response
		}
	}
	return ""
}

// acceptDeflate returns the response to an offer, or "" if it must be declined (RFC 7692, section 7): another
// extension, an unknown, repeated or invalid parameter, or an unsupported window size.
func (o *extensionOffer) acceptDeflate() string {
	if o.name != deflateName {
		return ""
	}
	response, seen := deflateResponse, make(map[string]bool, len(o.params))
	for _, p := range o.params {
		if seen[p.name] {
			return ""
		}
		seen[p.name] = true
		switch p.name {
		case "server_no_context_takeover", "client_no_context_takeover":
			if p.valued {
				return ""
			}
		case "client_max_window_bits": // any size: client messages are not inflated
			if p.valued && !isWindow(p.value) {
				return ""
			}
		case "server_max_window_bits":
			if !p.valued || p.value != deflateWindow {
				return ""
			}
			response += "; server_max_window_bits=" + deflateWindow
		default:
			return ""
		}
	}
	return response
}

// isWindow reports whether text is a number from 8 to 15 without leading zeros.
func isWindow(text string) bool {
	switch text {
	case "8", "9", "10", "11", "12", "13", "14", deflateWindow:
		return true
	}
	return false
}

// parseOffers parses a header (RFC 6455, section 9.1). Lists may have empty elements (RFC 9110, section 5.6.1).
func parseOffers(text string) (offers []extensionOffer, ok bool) {
	s := scanner{text}
	for s.rest != "" {
		if s.skip(',') {
			continue
		}
		var o extensionOffer
		if o.name = s.token(); o.name == "" {
			return nil, false
		}
		for s.skip(';') {
			p := parameter{name: s.token()}
			if p.name == "" {
				return nil, false
			}
			if p.valued = s.skip('='); p.valued {
				if p.value = s.value(); p.value == "" {
					return nil, false
				}
			}
			o.params = append(o.params, p)
		}
		if offers = append(offers, o); s.rest != "" && !s.skip(',') {
			return nil, false
		}
	}
	return offers, true
}

// scanner tokenizes a header and skips white space.
type scanner struct{ rest string }

func (s *scanner) trim() { s.rest = strings.TrimLeft(s.rest, " \t") }

func (s *scanner) skip(c byte) bool {
	s.trim()
	found := s.rest != "" && s.rest[0] == c
	if found {
		s.rest = s.rest[1:]
		s.trim()
	}
	return found
}

// token returns the next token, or "" if there is none.
func (s *scanner) token() string {
	s.trim()
	n := 0
	for n < len(s.rest) && isTokenByte(s.rest[n]) {
		n++
	}
	found := s.rest[:n]
	s.rest = s.rest[n:]
	s.trim()
	return found
}

// value returns the next token, which may be quoted, or "".
func (s *scanner) value() string {
	if !s.skip('"') {
		return s.token()
	}
	var found []byte
	for i := 0; i < len(s.rest); i++ {
		c := s.rest[i]
		if c == '"' {
			s.rest = s.rest[i+1:]
			s.trim()
			return string(found)
		}
		if c == '\\' && i+1 < len(s.rest) {
			i++
			c = s.rest[i]
		}
		if !isTokenByte(c) {
			return ""
		}
		found = append(found, c)
	}
	return ""
}

func isTokenByte(c byte) bool {
	return c > ' ' && c < 0x7f && !strings.ContainsRune(`()<>@,;:\"/[]?={}`, rune(c))
}
