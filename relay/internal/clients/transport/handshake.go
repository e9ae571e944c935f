package transport

import (
	"encoding/base64"
	"net/http"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

const version = "13"

// IsUpgrade reports whether the request asks for a websocket: an Upgrade header contains "websocket". The handshake may
// still be invalid.
func IsUpgrade(r *http.Request) bool { return hasToken(r.Header, "Upgrade", "websocket") }

// CheckHandshake checks a request against RFC 6455, section 4.2.1, so an upgrade does not fail after the token was
// consumed. It returns 426 if the request does not ask for a websocket over HTTP/1.1 in version 13, 405 for a method
// other than GET, and 400 for an invalid handshake. It sets the response headers Allow and Sec-WebSocket-Version.
func CheckHandshake(w http.ResponseWriter, r *http.Request) *relay.Error {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		return relay.NewError(relay.CodeMethod, "a websocket is opened with GET")
	}
	if !r.ProtoAtLeast(1, 1) || r.ProtoMajor != 1 {
		return relay.NewError(relay.CodeUpgradeRequired,
			"a websocket is opened over HTTP/1.1, this request came over "+r.Proto)
	}
	if !IsUpgrade(r) {
		return relay.NewError(relay.CodeUpgradeRequired, "send the headers Connection: Upgrade and Upgrade: websocket")
	}
	if !hasToken(r.Header, "Connection", "upgrade") {
		return badHandshake("the header Connection: Upgrade is missing; a proxy in between must pass it on")
	}
	got := r.Header.Values("Sec-WebSocket-Version")
	if len(got) == 0 {
		return badHandshake("the header Sec-WebSocket-Version is missing")
	}
	if len(got) > 1 || strings.TrimSpace(got[0]) != version {
		w.Header().Set("Sec-WebSocket-Version", version)
		return relay.NewError(relay.CodeUpgradeRequired, "the header Sec-WebSocket-Version must be 13")
	}
	if !validKey(r.Header) {
		return badHandshake("the header Sec-WebSocket-Key must be there once, 16 bytes in base64")
	}
	if r.ContentLength != 0 {
		return badHandshake("the request must not have a body")
	}
	return nil
}

func badHandshake(reason string) *relay.Error {
	return relay.NewError(relay.CodeInvalidSyntax, "the websocket handshake is broken: "+reason)
}

// minimalHandshake returns a request with only the headers that gorilla needs, so other headers of r cannot make it
// fail.
func minimalHandshake(r *http.Request) *http.Request {
	return &http.Request{Method: http.MethodGet, Host: r.Host, Header: http.Header{
		"Connection":            {"Upgrade"},
		"Upgrade":               {"websocket"},
		"Sec-Websocket-Version": {version},
		"Sec-Websocket-Key":     {strings.TrimSpace(r.Header.Get("Sec-WebSocket-Key"))},
	}}
}

func validKey(header http.Header) bool {
	keys := header.Values("Sec-WebSocket-Key")
	if len(keys) != 1 {
		return false
	}
	decoded, err := base64.StdEncoding.DecodeString(strings.TrimSpace(keys[0]))
	return err == nil && len(decoded) == 16
}

// hasToken reports whether the comma-separated lists of a header contain token, ignoring case.
func hasToken(header http.Header, name, token string) bool {
	for _, list := range header.Values(name) {
		for item := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(strings.TrimSpace(item), token) {
				return true
			}
		}
	}
	return false
}
