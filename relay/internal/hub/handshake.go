package hub

import (
	"encoding/base64"
	"net/http"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

const version = "13"

// IsUpgrade reports whether the request names websocket in an Upgrade header, even if the handshake is invalid.
func IsUpgrade(r *http.Request) bool { return hasToken(r.Header, "Upgrade", "websocket") }

// CheckHandshake rejects handshakes that RFC 6455, section 4.2.1, does not allow, before the token is used: 426 without
// a websocket upgrade, over another protocol than HTTP/1.1, or with another version than 13; 405 for another method
// than GET; 400 for an invalid handshake. It sets the headers of the answer. [Hub.Serve] calls it too.
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

func badHandshake(problem string) *relay.Error {
	return relay.NewError(relay.CodeInvalidSyntax, "the websocket handshake is broken: "+problem)
}

// plainHandshake returns a request that gorilla accepts, whatever other headers r has.
func plainHandshake(r *http.Request) *http.Request {
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

// hasToken reports whether a comma-separated header contains token, ignoring case.
func hasToken(header http.Header, name, token string) bool {
	for _, list := range header.Values(name) {
		for one := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(strings.TrimSpace(one), token) {
				return true
			}
		}
	}
	return false
}

// canHijack looks through wrappers as [http.ResponseController] does.
func canHijack(w http.ResponseWriter) bool {
	for w != nil {
		if _, ok := w.(http.Hijacker); ok {
			return true
		}
		inner, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return false
		}
		w = inner.Unwrap()
	}
	return false
}
